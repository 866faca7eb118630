"""The studies of Poise: run what the protocols name, one line of JSON for each run as it ends.

    python studies/poise/study.py frozen --budget 480                       # PROTOCOL.md
    python studies/poise/study.py frozen --budget 240 --share 0 2           # half of it
    python studies/poise/study.py tune|fold|prior|report|ablations|regression|lenet ...

The second line is the study of the first form (PROTOCOL_FIRST_FORM.md). Results that are stored are
not run again. The data sets must be available (EQUIPOISE_DATA).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import settings
import variants
from equipoise import simulate
from equipoise.data import DataConfig, Dataset, Federation, Parts, federate, from_arrays
from equipoise.experiment import Experiment
from equipoise.experiment.specifications import method_from
from equipoise.method import Method
from equipoise.methods.poise import Poise
from equipoise.runs import Run
from equipoise.storage.store import RunError
from equipoise.streams import stream
from equipoise.weighting import log_likelihoods, posterior_mean, simplex_grid

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
FOLDS = 3
OTHER = 50_000  # added to the seed of training where the data stay


@lru_cache(maxsize=4)
def _federated(data: str, seed: int) -> Federation:
    return federate(DataConfig(**json.loads(data)), seed)


def federation_of(data: dict[str, Any], seed: int) -> Federation:
    """Return the federation of some data settings and a seed."""
    return _federated(json.dumps(data, sort_keys=True), seed)


def with_validation(federation: Federation) -> Federation:
    """Validation data are training data, and there are no others."""
    both = [
        np.concatenate(pair) for pair in zip(federation.train, federation.validation, strict=True)
    ]
    return replace(
        federation, train=Parts.of(both), validation=Parts.of([part[:0] for part in both])
    )


def fold(federation: Federation, number: int, seed: int) -> Federation:
    """A fold of training plus validation data for validation, the others for training."""
    whole = with_validation(federation).train
    orders = [stream(seed, "folds", k).permutation(part) for k, part in enumerate(whole)]
    return replace(
        federation,
        train=Parts.of([np.sort(np.delete(order, np.s_[number::FOLDS])) for order in orders]),
        validation=Parts.of([np.sort(order[number::FOLDS]) for order in orders]),
    )


def known(results: Path = RESULTS) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the runs so far: (part, model, setting, method, seed) -> record."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {key_of(record): record for record in map(json.loads, lines)}


# Label -> the model that a shared run serves for it, None for the main one, and the share of its end.
Shared = dict[str, tuple[str | None, float]]
KEY = ("part", "model", "setting", "method", "seed")


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of a stored record."""
    return tuple(record[name] for name in KEY)


def named(key: tuple[Any, ...]) -> dict[str, Any]:
    """Return a key as a mapping."""
    return dict(zip(KEY, key, strict=True))


class Study:
    """Runs, one after another, each kept as it ends."""

    def __init__(self, results: Path = RESULTS) -> None:
        self.results = results
        self.done = known(results)
        self.right: dict[
            tuple[Any, ...], list[np.ndarray]
        ] = {}  # of training alone: which test samples it gets right

    def one(
        self,
        part: str,
        setting: str,
        label: str,
        method: Any,
        seed: int,
        *,
        model: str = "mlp",
        change: Callable[[Federation], Federation] | None = None,
        against: str | None = "standalone",
        other: int = 0,
        keep: Callable[[Run, Federation], None] | None = None,
        again: bool = False,
        common: dict[str, Any] | None = None,
        shared: Shared | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Run one cell of the study unless its result is stored.

        `common` are changes of settings that training alone has, too, when it must be repeated
        after a pause. With `shared` one run gives the results of several methods, `label` among
        them.
        """
        key = (part, model, setting, label, seed)
        parts = {label: (None, 1.0)} if shared is None else shared
        changes = {**(common or {}), **changes}
        experiment = Experiment(**settings.config(setting, method, seed + other, model, **changes))
        if key in self.done and keep is None and not again:
            return self.done[key]
        if against is not None and label != against and (*key[:3], against, seed) not in self.right:
            self.alone(part, setting, against, seed, model, common or {})
        plain = federation_of(experiment.data.model_dump(mode="json"), seed)
        federation = change(plain) if change is not None else plain
        began, cpu = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder, run_on(federation):
            try:
                run = simulate.run(experiment, Path(folder) / "run")
            except RunError as error:
                if "not finite" not in str(error):
                    raise
                for name in parts:
                    self.keep({**named((*key[:3], name, seed)), "diverged": str(error)})
                return self.done[key]
            seconds = [
                round(time.perf_counter() - began, 1),
                round(time.process_time() - cpu, 1),
            ]
            records = {}
            for name, (served, share) in parts.items():
                own = (*key[:3], name, seed)
                records[name] = self.record(
                    run, experiment, federation, own, against, served or run.main_model, share
                )
                records[name]["seconds"] = seconds
            if keep is not None:
                keep(run, federation)
        for record in records.values():
            if key_of(record) not in self.done:
                self.keep(record)
        return records[label]

    def record(
        self,
        run: Run,
        experiment: Experiment,
        federation: Federation,
        key: tuple[Any, ...],
        against: str | None,
        model: str,
        share: float,
    ) -> dict[str, Any]:
        """Return the record of a served model of a finished run.

        `share` is the share of the end of the run that this model needs: 0 for that of the rounds.
        """
        found = run.final(model=model)
        right = [
            self._right(run, experiment, federation, k, client, model)
            for k, client in enumerate(federation.ids)
        ]
        steps = sum(row["steps"] for row in run.rounds())
        steps += round(share * sum(row["steps"] for row in run.finish()))
        rows = [*run.rounds(), *(run.finish() if share else [])]
        validation = run.final(model=model, split="validation")
        record: dict[str, Any] = named(key) | {
            "served": model,
            "accuracy": [round(found[client], 6) for client in federation.ids],
            "tests": [len(part) for part in federation.test],
            "samples": [len(part) for part in federation.train],
            "validation": [round(value, 6) for value in validation.values()],
            "steps": steps,
            "bytes": [sum(row[way] for row in rows) for way in ("bytes_down", "bytes_up")],
        }
        if "loss" in experiment.evaluation.metrics:
            losses = run.final("loss", model=model)
            record["nll"] = [round(losses[client], 6) for client in federation.ids]
        assert all(
            abs(mean.mean() - value) < 1e-4
            for mean, value in zip(right, record["accuracy"], strict=True)
        )
        if key[3] == against or key[3] == "standalone":
            self.right[key] = right
        reference = self.right.get((*key[:3], against, key[4]))
        # of the test samples: alone right and this one wrong, and the other way round
        if reference is not None and key[3] != against:
            record["lost"] = [
                int((alone & ~own).sum()) for alone, own in zip(reference, right, strict=True)
            ]
            record["won"] = [
                int((~alone & own).sum()) for alone, own in zip(reference, right, strict=True)
            ]
        return record

    def _right(
        self,
        run: Run,
        experiment: Experiment,
        federation: Federation,
        k: int,
        client: str,
        model: str,
    ) -> np.ndarray:
        places = torch.from_numpy(np.array(federation.test[k]))
        net = run.model(model, client=client, experiment=experiment)
        with torch.no_grad():
            said = torch.cat([net(federation.x[chunk]).argmax(1) for chunk in places.split(256)])
        return (said == federation.y[places]).numpy()

    def alone(
        self, part: str, setting: str, label: str, seed: int, model: str, common: dict[str, Any]
    ) -> None:
        """Train alone; later runs need the samples that it gets right, also after a pause."""
        change = with_validation if label.endswith("+ validation") else None
        self.one(
            part,
            setting,
            label,
            {"name": "standalone"},
            seed,
            model=model,
            change=change,
            against=label,
            again=True,
            common=common,
        )

    def tune(self) -> None:
        """Run the grids of hyper-parameters."""
        for seed in settings.TUNING:
            for setting in ("pow", "dirichlet-0.5"):
                for label, grid in settings.GRID.items():
                    ((name, values),) = grid.items()
                    for value in values:
                        method, changes = tuned_to(label, {name: value})
                        self.one(
                            "tune",
                            setting,
                            f"{label} {name}={value}",
                            method,
                            seed,
                            against=None,
                            **changes,
                        )

    def fold(self) -> None:
        """Compare ways to use the validation data."""
        for seed in settings.TUNING:
            for setting in ("pow", "dirichlet-0.1", "dirichlet-0.5"):
                alone = {"against": "standalone + validation"}
                self.one("fold", setting, "plain", Poise(variant="one", fold=False), seed, **alone)
                self.one("fold", setting, "folded", variants.Folded(), seed, **alone)
                self.one("fold", setting, "folded-all", Poise(variant="one"), seed, **alone)
                if ("fold", "mlp", setting, "crossed", seed) not in self.done:
                    with tempfile.TemporaryDirectory() as folder:
                        noted = str(Path(folder) / "noted.npz")
                        self.cross(setting, seed, noted)
                        self.one(
                            "fold",
                            setting,
                            "crossed",
                            variants.Given(fold=False, noted=noted),
                            seed,
                            change=with_validation,
                            **alone,
                        )

    def cross(self, setting: str, seed: int, target: str) -> None:
        """What experts trained without a sample's fold say of it, of all folds together, and the prior that follows."""
        said: dict[str, list[np.ndarray]] = {}

        def note(run: Run, federation: Federation) -> None:
            from equipoise.records import read

            for client in federation.ids:
                state = read(run.store.current("client", client)[client].path, lazy=False)
                said.setdefault(client, []).append(state["noted"].numpy())

        for number in range(FOLDS):
            change = lambda federation, number=number: fold(federation, number, seed)  # noqa: E731
            self.one(
                "fold",
                setting,
                f"fold {number}",
                variants.Noting(fold=False),
                seed,
                change=change,
                against=None,
                keep=note,
            )
        joined = {client: np.concatenate(rows) for client, rows in said.items()}
        grid = simplex_grid(4)
        prior = np.mean(
            [posterior_mean(log_likelihoods(rows, grid), grid) for rows in joined.values()], axis=0
        )
        np.savez(target, prior=prior, **joined)

    def prior(self) -> None:
        """Compare the two priors with clients that lie."""
        for seed in settings.LIARS:
            for setting in ("dirichlet-0.5", "ics-5"):
                for prior in ("mean", "pooled"):
                    self.one(
                        "prior",
                        setting,
                        f"{prior}, nobody lies",
                        Poise(variant="one", fold=False, prior=prior),
                        seed,
                    )
                    self.one(
                        "prior",
                        setting,
                        f"{prior}, two lie",
                        variants.Lying(fold=False, prior=prior),
                        seed,
                    )

    def report(self, model: str = "mlp") -> None:
        """Run the main comparison."""
        seeds = range(10) if model == "mlp" else range(3)
        for seed in seeds:
            for setting in settings.WITH_MLP if model == "mlp" else settings.WITH_LENET:
                if seed in settings.REPORT or setting == "hospitals":
                    for label in (
                        *settings.METHODS,
                        *(() if kept() == "plain" else ("poise, plain",)),
                    ):
                        self.reported(setting, label, seed, model)

    def reported(self, setting: str, label: str, seed: int, model: str) -> None:
        """Run one method of the main comparison."""
        name = label.partition(" + ")[0].partition(",")[0]
        method, changes = tuned_to(name, chosen().get(name, {}))
        if name == "poise":
            method = poise("plain" if label.endswith("plain") else kept())
        change = with_validation if label.endswith("+ validation") else None
        other = OTHER if label.endswith("other numbers") else 0
        self.one(
            "report",
            setting,
            label,
            method,
            seed,
            model=model,
            change=change,
            other=other,
            **changes,
        )

    def regression(self) -> None:
        """Run the comparison on regression data."""
        for seed in range(10):
            for setting in settings.REGRESSION:
                for label in (
                    settings.NUMBERS if seed in settings.REPORT or setting == "diabetes" else ()
                ):
                    self.number(setting, label, seed)

    def number(self, setting: str, label: str, seed: int) -> None:
        """A run of a regression; only its errors are kept."""
        key = ("regression", "mlp", setting, label, seed)
        if key in self.done:
            return
        method = (
            Poise(variant="one", fold=not label.endswith("plain"))
            if label.startswith("poise")
            else tuned_to(label.partition(",")[0], {})[0]
        )
        config = settings.config(
            setting, method, seed + (OTHER if label.endswith("other numbers") else 0)
        )
        experiment = Experiment(**config, dataset=diabetes() if setting == "diabetes" else None)
        federation = federate(experiment.data, seed, experiment.dataset)
        with tempfile.TemporaryDirectory() as folder, run_on(federation):
            found = simulate.run(experiment, Path(folder) / "run").final()
        self.keep(
            {
                **named(key),
                "rmse": [round(found[client], 6) for client in federation.ids],
                "tests": list(map(len, federation.test)),
            }
        )

    def keep(self, record: dict[str, Any]) -> None:
        """Append a record to the results."""
        with self.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.done[key_of(record)] = record
        said = (
            "diverged"
            if "diverged" in record
            else f"{np.mean(record.get('accuracy', record.get('rmse'))):.4f}"
        )
        print(*key_of(record), said, flush=True)

    def lenet(self) -> None:
        """Run the main comparison with LeNet."""
        self.report("lenet")

    def ablations(self) -> None:
        """Run the ablations."""
        for seed in settings.REPORT:
            for setting in ("dirichlet-0.5", "ics-5"):
                for label, method in {
                    "plain": Poise(variant="one", fold=False),
                    **settings.ABLATIONS,
                    "hard choice": variants.Hard(fold=False),
                }.items():
                    self.one("ablations", setting, label, method, seed)


def diabetes() -> Dataset:
    """The 442 patients of scikit-learn's set: ten findings, and how the disease went on."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    return from_arrays(
        found.data, found.target, kind="regression", name="diabetes", columns=found.feature_names
    )


def tuned_to(label: str, values: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
    """A method with tuned values, and the changes of the training settings that belong to it."""
    spec = dict(settings.METHODS[label])
    spec |= {
        name.removeprefix("method."): value
        for name, value in values.items()
        if name.startswith("method.")
    }
    changes = {name: value for name, value in values.items() if not name.startswith("method.")}
    return method_from(spec), ({"training.optimiser": "sgd"} if label == "feddc" else {}) | changes


@lru_cache
def chosen() -> dict[str, dict[str, Any]]:
    """What tuning chose: the value with the highest validation accuracy; the default, which stands first, on a tie."""
    done = [record for record in known().values() if record["part"] == "tune"]
    found = {}
    for label, grid in settings.GRID.items():
        ((name, values),) = grid.items()
        scores = [
            np.mean(
                [
                    np.mean(one["validation"])
                    for one in done
                    if one["method"] == f"{label} {name}={value}"
                ]
            )
            for value in values
        ]
        found[label] = {name: values[int(np.argmax(scores))]}
    return found


@lru_cache
def kept() -> str:
    """Which way with validation data holds, by the protocol's rule; the cheapest of several."""
    done = {key_of(record)[2:]: record for record in known().values() if record["part"] == "fold"}
    places = sorted({(key[0], key[2]) for key in done})

    def average(label: str, seed: int) -> float:
        return float(
            np.mean(
                [
                    np.mean(done[setting, label, seed]["accuracy"])
                    for setting, own in places
                    if own == seed
                ]
            )
        )

    def harmed(label: str) -> int:
        pairs = [
            (done[setting, label, seed], done[setting, "standalone + validation", seed])
            for setting, seed in places
        ]
        return sum(
            own < alone
            for one, other in pairs
            for own, alone in zip(one["accuracy"], other["accuracy"], strict=True)
        )

    for label in ("folded", "folded-all", "crossed"):
        if all(
            average(label, seed) > average("plain", seed) for seed in settings.TUNING
        ) and harmed(label) < harmed("plain"):
            return label
    return "plain"


def poise(label: str) -> Poise:
    """Poise as the decisions made it; one that was crossed would need its folds, and is not run here."""
    forms: dict[str, Poise] = {
        "plain": Poise(variant="one", fold=False),
        "folded": variants.Folded(),
        "folded-all": Poise(variant="one"),
    }
    return forms[label]


class run_on:
    """Within it a run has these data: prepared once, or with other parts than its seed would deal."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def __enter__(self) -> None:
        self.before = simulate.load_data
        simulate.load_data = lambda *_: (self.federation, None)

    def __exit__(self, *error: object) -> None:
        simulate.load_data = self.before


PARTS = ("tune", "fold", "prior", "report", "ablations", "regression", "lenet")


def main() -> None:
    """Run the parts of the study that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "frozen"])
    parser.add_argument(
        "--budget", type=float, default=480.0, help="minutes of processor time of `frozen`"
    )
    parser.add_argument(
        "--share",
        type=int,
        nargs=2,
        default=(0, 1),
        metavar=("K", "N"),
        help="run share K, from 0 on, of N that run at the same time (`frozen`)",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study = Study()
    for part in arguments.parts:
        if part == "frozen":
            import frozen

            frozen.run(arguments.budget, *arguments.share)
        else:
            getattr(study, part)()


if __name__ == "__main__":
    main()
