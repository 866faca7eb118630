"""Sentences that a reader needs to understand the numbers of a run."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.metrics.registry import measured, why_main
from equipoise.runs.aggregates import diverged, list_clients
from equipoise.runs.baseline import different_settings, is_baseline_for
from equipoise.runs.convergence import not_converged
from equipoise.runs.result import MetricResult, RunResult

SPLIT = [0.7, 0.1, 0.2]  # the default of data.split


def notes(result: RunResult, metric: str | None = None, model: str | None = None) -> list[str]:
    """Return notes on the data, on the choice of the metric, and on clients without a value.

    Args:
        result: The result of a run.
        metric: The metric that is shown; by default the main one.
        model: The served model that is shown; by default the main one.
    """
    scores = result.metric(metric, model)
    sentences = list(result.facts.get("notes", []))
    if scores.metric.name == result.main_metric:
        sentences.append(_choice_of_metric(result))
    if result.status == "finished" and model in (None, result.main_model):
        sentences.append(not_converged(scores.curve, scores.metric))
    sentences.append(_older_round(result, scores))
    sentences.append(unevaluated(result))
    sentences.append(_cohort_only(result, scores))
    sentences.append(without_samples(result))
    sentences.append(trained_on_validation(result))
    sentences.append(one_class(scores, result.main_split))
    sentences.append(diverged(scores.metric.name, scores.values))
    sentences += _about_baseline(result, scores)
    if result.status == "finished" and not scores.values and not scores.undefined:
        sentences.append(nothing_measured(result))
    return [sentence for sentence in sentences if sentence]


def _choice_of_metric(result: RunResult) -> str:
    evaluation = result.config["evaluation"]
    main = evaluation.get("main")
    return why_main(measured(result.task, evaluation["metrics"], main), main)


def unevaluated(result: RunResult) -> str:
    """Return a sentence about clients without values of the last evaluation; empty without any."""
    missing = result.unevaluated
    if not missing:
        return ""
    total = len(result.clients)
    remedy = "averages are over the others" if len(missing) < total else "there are no averages"
    if result.status == "finished":
        remedy += f"; {result.resume_command} evaluates {list_clients(missing)}"
    was = "was" if len(missing) == 1 else "were"
    return (
        f"{total - len(missing)} of {total} clients evaluated: {list_clients(missing)} {was} away "
        f"or failed; {remedy}"
    )


def _older_round(result: RunResult, scores: MetricResult) -> str:
    """Return a sentence if the last rounds of a run were not measured; empty if they were."""
    rounds = scores.curve.rounds
    if result.status == "finished" or not rounds or rounds[-1] >= result.last_round:
        return ""
    return f"the values are those of round {rounds[-1]}, the last one that was measured"


def _cohort_only(result: RunResult, scores: MetricResult) -> str:
    """Return a sentence if only the cohort of the last round was measured; else empty."""
    is_cohort = result.config["evaluation"].get("clients") == "cohort"
    count = len(scores.values)
    if not is_cohort or not count or count >= len(result.clients):
        return ""
    clients = "client" if count == 1 else "clients"
    return (
        f"only the {count} {clients} of the last cohort, of {len(result.clients)}, were measured; "
        "averages are over them"
    )


def _about_baseline(result: RunResult, scores: MetricResult) -> list[str]:
    """Return what limits a comparison with training alone."""
    alone = result.baseline
    if alone is None:
        return []
    sentences = []
    if alone.status != "finished":
        rounds = alone.config["rounds"]
        sentences.append(
            f"training alone is not finished: it is at round {alone.last_round} of {rounds}"
        )
    elif not is_baseline_for(alone.config, alone.fingerprint, result.config, result.fingerprint):
        settings = ", ".join(different_settings(alone.config, result.config))
        sentences.append(
            f"training alone differs in {settings or 'its data'}: gains are not those of joining "
            "alone"
        )
    if alone.outdated:
        sentences.append(f"the run of training alone is outdated: {alone.outdated}")
    broken = diverged(scores.metric.name, scores.baseline or {})
    if broken:
        sentences.append(f"training alone: {broken}; gains of these clients are not known")
    if alone.unevaluated:
        clients = list_clients(alone.unevaluated)
        sentences.append(
            f"training alone was not evaluated at {clients}; gains are over the others"
        )
    return sentences


def without_samples(result: RunResult) -> str:
    """Return a sentence about clients that have nothing to be tested on; empty if all have."""
    if result.main_split != "test" or not any(result.sizes.get("test", ())):
        return ""  # a shared test set, or `nothing_measured` says why
    totals = [sum(parts) for parts in zip(*result.sizes.values(), strict=True)]
    empty = []
    untested = []
    for client, total, test in zip(result.clients, totals, result.sizes["test"], strict=True):
        if not total:
            empty.append(client)
        elif not test:
            untested.append(client)
    parts = []
    for clients, missing in ((empty, "samples"), (untested, "test samples")):
        if clients:
            parts.append(f"{list_clients(clients)} {_has(clients)} no {missing}")
    if not parts:
        return ""
    return f"{', '.join(parts)}; averages are over the others"


def _has(clients: Sequence[str]) -> str:
    return "has" if len(clients) == 1 else "have"


def trained_on_validation(result: RunResult) -> str:
    """Return a sentence if values on validation data are values on training data; else empty."""
    held_out = result.held_out_rounds
    is_measured = "validation" in result.config["evaluation"]["splits"]
    if held_out is None or not is_measured or not any(result.sizes["validation"]):
        return ""
    since = f"after round {held_out}" if held_out else "in all rounds"
    return (
        f"clients train on their validation data {since}: values on validation data are then "
        "values on training data"
    )


def one_class(scores: MetricResult, split: str = "test") -> str:
    """Return a sentence about clients for which a metric does not exist; empty if there are none.

    >>> from equipoise.metrics.registry import find
    >>> one_class(MetricResult(find("auroc"), dict.fromkeys("abcdefgh", 0.5), ["3", "7"]))
    ... # doctest: +NORMALIZE_WHITESPACE
    'auroc is undefined for clients 3 and 7: their test data have one class;
    averages are over the other 8'
    """
    if not scores.undefined:
        return ""
    remedy = "choose another metric"
    if scores.values:
        remedy = f"averages are over the other {len(scores.values)}"
    owner = "its" if len(scores.undefined) == 1 else "their"
    if split == "shared":
        owner = "the shared"
    clients = list_clients(scores.undefined)
    reason = f" on {owner} test data"
    if scores.metric.needs == "two classes":
        reason = f": {owner} test data have one class"
    return f"{scores.metric.name} is undefined for {clients}{reason}; {remedy}"


def nothing_measured(result: RunResult) -> str:
    """Return why a finished run has no value on test data."""
    splits = result.config["evaluation"]["splits"]
    if result.main_split == "test" and "test" not in splits:
        named = ", ".join(splits) or "nothing"
        return (
            f"nothing was measured on test data: evaluation.splits names {named}; put test into it"
        )
    if result.main_split == "test" and not any(result.sizes["test"]):
        share = result.config["data"].get("split", SPLIT)[2]
        return _no_test_data(share, list(result.sizes.values()))
    return (
        "nothing was measured: no client of the last measurement has test data and "
        "answered; `equipoise table` lists what there is"
    )


def _no_test_data(share: float, sizes: Sequence[Sequence[int]]) -> str:
    if not share:
        return (
            "nothing was measured: data.split gives tests no share; set data.split=[0.7, 0.1, 0.2],"
            " say"
        )
    largest = max((sum(parts) for parts in zip(*sizes, strict=True)), default=0)
    return (
        f"nothing was measured: no client has a test sample, since the largest has {largest} and "
        f"{share:.0%} of that is less than one; use more data, fewer clients or a larger share for "
        "tests (data.split)"
    )


def no_test(metric: str) -> str:
    """Return why gains in a metric have no test.

    >>> no_test("auroc")
    ... # doctest: +NORMALIZE_WHITESPACE
    'gains and losses in auroc have no test: runs keep none of its values by test sample;
    for accuracy there is a test'
    """
    if metric == "accuracy":
        return "gains and losses have no test: the accuracies are not those of the known test sets"
    return (
        f"gains and losses in {metric} have no test: runs keep none of its values by test sample; "
        "for accuracy there is a test"
    )
