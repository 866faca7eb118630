"""How a run ended, in numbers: average, worst, best, and gains against training alone where that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.metrics import accuracy_variance, best_and_last, between_client_variance
from equipoise.metrics.gains import SIGNIFICANT, gain_in
from equipoise.metrics.registry import Metric, find, is_known, main_of, measured, why_main
from equipoise.runs.clinical import clinical
from equipoise.runs.convergence import in_words, mean_curve, still_rising
from equipoise.runs.reference import check_comparable
from equipoise.runs.run import Run
from equipoise.storage.store import RoundRecord, RunError

NAMED = 12  # clients that a sentence names


def summarise(
    run: Run, alone: Run | None = None, model: str | None = None, metric: str | None = None
) -> dict[str, Any]:
    """What `equipoise show` prints."""
    name, known = model or run.main_model, metrics_of(run)
    if metric is not None and metric not in known:
        raise RunError(
            f"{run.folder} did not measure {metric!r}; it has {', '.join(known) or 'nothing yet'}"
        )
    metric = metric or run.main_metric
    values = run.final(metric, name)
    sizes = dict(zip(run.clients, run.store.meta("sizes")["train"], strict=True))
    lower = find(metric).lower_is_better
    found: dict[str, Any] = {
        "run": str(run.folder),
        "status": run.status,
        "round": run.last_round,
        "rounds": run.config["rounds"],
        "data": run.store.meta("data"),
        "partition": run.config["data"]["partition"],
        "method": run.config["method"],
        "seed": run.config["seed"],
        "created": run.store.meta("created"),
        "clients": len(run.clients),
        "model": name,
        "models": run.models(),
        "metric": metric,
        "metrics": {other: over_clients(run.final(other, name), other) for other in known},
        "split": run.main_split,
        "rejected replies": len(run.rejected()),
        "outdated": run.outdated,
        "notes": notes(run, metric, name, chosen=metric == run.main_metric),
    }
    if values:
        found |= (
            over_clients(values, metric)
            | best_round(run, metric, name)
            | _without_noise(run, metric, values)
        )
    rows: dict[str, dict[str, Any]] = {
        client: {"samples": sizes.get(client), "value": value} for client, value in values.items()
    }
    if metric == "accuracy":
        majority = run.majority()
        rows = {
            client: row | ({"majority": majority[client]} if client in majority else {})
            for client, row in rows.items()
        }
    found["clinical"] = {
        client: {measure: one.as_dict() for measure, one in own.items()}
        for client, own in clinical(run, name).items()
    }
    if alone is not None:
        check_comparable(run, alone)
        reference, sizes_of_tests = alone.final(metric), run.test_sizes
        for client, row in rows.items():
            if client in reference:
                row |= {
                    "alone": reference[client],
                    "gain": (reference[client] - row["value"]) * (1 if lower else -1) + 0.0,
                }
                test = gain_in(
                    metric, reference[client], row["value"], sizes_of_tests.get(client, 0)
                )
                if test is not None:
                    row |= {"gain low": test.low, "gain high": test.high, "p": test.p}
        gains = [row["gain"] for row in rows.values() if "gain" in row]
        if gains:
            found |= {
                "against": str(alone.folder),
                "gained": sum(g > 0 for g in gains),
                "lost": sum(g < 0 for g in gains),
                "average gain": float(np.mean(gains)),
            }
            tested = [row for row in rows.values() if "p" in row]
            if tested:
                clear = [row["gain"] for row in tested if row["p"] < SIGNIFICANT]
                found |= {
                    "clearly gained": sum(g > 0 for g in clear),
                    "clearly lost": sum(g < 0 for g in clear),
                }
            else:
                found["notes"].append(no_test(metric))
        elif values:
            found["notes"].append(
                f"{alone.folder} has no {metric} of these clients, so gains over training alone are not known"
            )
    return found | {"per client": rows}


def no_test(metric: str) -> str:
    """
    >>> no_test("auroc")
    'gains and losses in auroc have no test: runs keep none of its values by test sample; for accuracy there is a test'
    """
    if metric == "accuracy":
        return "gains and losses have no test: the accuracies are not those of the known test sets"
    return f"gains and losses in {metric} have no test: runs keep none of its values by test sample; for accuracy there is a test"


def metrics_of(run: Run) -> list[str]:
    """What was measured, the main metric first."""
    rows = run.store.rows("select distinct metric from measurements where phase = 'received'")
    known = [row["metric"] for row in rows if is_known(row["metric"])]
    return sorted(known, key=lambda name: name != run.main_metric)


def of_main(record: RoundRecord, main: str | None = None) -> tuple[Metric | None, list[float]]:
    """The main metric of a round and its values by client, of the main model, on the shared test set where there is one; `main` if asked for."""
    phase = "final" if record.finish else "received"
    rows = [
        row
        for row in record.measurements
        if row[1] == record.main and row[2] == phase and row[3] in ("test", "shared")
    ]
    if not rows:
        return None, []
    metric = find(main_of([row[4] for row in rows], main))
    split = "shared" if any(row[3] == "shared" for row in rows) else "test"
    return metric, [row[5] for row in rows if row[3:5] == (split, metric.name)]


def over_clients(values: Mapping[str, float], metric: str) -> dict[str, float]:
    """Average, extremes and spread; empty without values."""
    if not values:
        return {}
    numbers = np.array(list(values.values()))
    low, high = float(numbers.min()), float(numbers.max())
    worst, best = (high, low) if find(metric).lower_is_better else (low, high)
    return {
        "average": float(numbers.mean()),
        "worst": worst,
        "best": best,
        "std": float(numbers.std()),
    }


def best_round(run: Run, metric: str, model: str) -> dict[str, float]:
    """The measured round with the best average over clients, and that average; chosen with the test data in view, so no result."""
    curve = mean_curve(run, metric, model)
    if np.isnan(curve.means).all():
        return {}
    best = best_and_last(curve.means, find(metric).lower_is_better)
    return {"best round": curve.rounds[int(best["best_round"]) - 1], "average then": best["best"]}


def undefined(
    run: Run, metric: str, model: str, values: Mapping[str, float] | None = None
) -> list[str]:
    """Clients that were measured last, but for whose samples the metric does not exist; `values`: what the others had, if that was read already."""
    split, values = run.main_split, run.final(metric, model) if values is None else values
    rounds = run.store.rows(
        "select max(round) as last from measurements where phase = 'received' and model = ?",
        (model,),
    )
    unasked = split != "shared" and split not in run.config["evaluation"]["splits"]
    if rounds[0]["last"] is None or "all" in values or unasked:
        return []
    sizes = run.store.meta("sizes").get(split, [1] * len(run.clients))
    asked = set(run.clients)
    if run.config["evaluation"]["clients"] == "cohort":
        last = run.finish() or [row for row in run.rounds() if row["round"] == rounds[0]["last"]]
        asked = {client for row in last for client in row["joined"]}
    return [
        client
        for client, size in zip(run.clients, sizes, strict=True)
        if size and client in asked and client not in values
    ]


def notes(run: Run, metric: str, model: str, chosen: bool = True) -> list[str]:
    """Sentences that a reader needs beside the numbers: what to know of the data, why this metric, and for which clients it has no value."""
    asked = run.config["evaluation"]
    why = (
        why_main(measured(run.task, asked["metrics"], asked.get("main")), asked.get("main"))
        if chosen
        else ""
    )
    values = run.final(metric, model)
    missing = undefined(run, metric, model, values)
    nothing = unmeasured(run) if not values and not missing else ""
    rising = _rising(run, metric) if model == run.main_model else ""
    sentences = (
        why,
        rising,
        one_class(metric, missing, len(values), run.main_split),
        diverged(metric, values),
        nothing,
    )
    # runs of older versions have none
    about_data = (run.store.meta("facts") or {}).get("notes", [])
    return [*about_data, *(sentence for sentence in sentences if sentence)]


def _rising(run: Run, metric: str) -> str:
    """That training was not over, if it was not; of a run that goes on nobody would think so."""
    if run.status != "finished":
        return ""
    curve = mean_curve(run, metric)
    rise = still_rising(curve, find(metric).lower_is_better)
    return in_words(rise, curve.rounds[-1], find(metric)) if rise is not None else ""


def unmeasured(run: Run) -> str:
    """Why a finished run has no value on test data."""
    if run.status != "finished":
        return ""
    asked = run.config["evaluation"]["splits"]
    if run.main_split == "test" and "test" not in asked:
        return f"nothing was measured on test data: evaluation.splits names {', '.join(asked) or 'nothing'}; put test into it"
    sizes, share = run.store.meta("sizes"), run.config["data"].get("split", [0.7, 0.1, 0.2])[2]
    if run.main_split == "test" and not any(sizes["test"]):
        rows = max((sum(parts) for parts in zip(*sizes.values(), strict=True)), default=0)
        return (
            "nothing was measured: data.split gives tests no share; set data.split=[0.7, 0.1, 0.2], say"
            if not share
            else f"nothing was measured: no client has a test sample, since the largest has {rows} and {share:.0%} of that is less than one; "
            "use more data, fewer clients or a larger share for tests (data.split)"
        )
    return "nothing was measured: no client that was asked at the last measurement has test data and answered; `equipoise table` lists what there is"


def one_class(metric: str, missing: Sequence[str], others: int, split: str = "test") -> str:
    """
    >>> one_class("auroc", ["3", "7"], 8)
    'auroc is undefined for clients 3 and 7: their test data have one class; averages are over the other 8'
    """
    if not missing:
        return ""
    left = f"averages are over the other {others}" if others else "choose another metric"
    whose = "the shared" if split == "shared" else "its" if len(missing) == 1 else "their"
    return f"{metric} is undefined for {clients_in_words(missing)}: {whose} test data have one class; {left}"


def diverged(metric: str, values: Mapping[str, float]) -> str:
    broken = [client for client, value in values.items() if np.isnan(value)]
    return (
        f"{metric} of {clients_in_words(broken)} is not a number: the outputs of the model are not finite"
        if broken
        else ""
    )


def clients_in_words(clients: Sequence[str]) -> str:
    """
    >>> clients_in_words(["a"]), clients_in_words(["a", "b", "c"])
    ('client a', 'clients a, b and c')
    """
    shown = (
        list(clients)
        if len(clients) <= NAMED
        else [*clients[:NAMED], f"{len(clients) - NAMED:,} more"]
    )
    return (
        f"client {shown[0]}"
        if len(shown) == 1
        else f"clients {', '.join(shown[:-1])} and {shown[-1]}"
    )


def _without_noise(run: Run, metric: str, values: dict[str, float]) -> dict[str, float]:
    """The spread of accuracy over clients that finite test sets do not explain; nothing where it cannot be said."""
    totals = dict(zip(run.clients, run.store.meta("sizes")["test"], strict=True))
    if (
        metric != "accuracy"
        or run.main_split != "test"
        or any(totals.get(client, 0) < 2 for client in values)
    ):
        return {}
    numbers = list(values.values())
    if not np.isfinite(numbers).all():
        return {}
    noise = accuracy_variance(numbers, [totals[client] for client in values])
    return {
        "std without test noise": float(
            np.sqrt(between_client_variance(numbers, noise)["debiased"])
        )
    }
