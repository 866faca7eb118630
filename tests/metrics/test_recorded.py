"""What a run records, recomputed from its models and data by scikit-learn and plain numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn import metrics as reference

import equipoise as eq
from equipoise.data import DataConfig, Federation, federate
from equipoise.runs import Run, read_result
from equipoise.runs.summary import summarise
from tests.helpers.runs import played, settings, sites

# Those that `by_hand` computes in another way; a new metric comes with a reference of its own.
OPTIONAL = (
    "accuracy",
    "loss",
    "auroc",
    "auprc",
    "balanced_accuracy",
    "f1",
    "sensitivity_at_specificity",
    "calibration_error",
)


def federation_of(run: Run, dataset: eq.Dataset) -> Federation:
    return federate(DataConfig(**run.config["data"]), run.config["seed"], dataset)


def predicted(
    net: torch.nn.Module, federation: Federation, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs in float64, and the truth."""
    places = places.copy()
    with torch.no_grad():
        return net(federation.x[places]).double().numpy(), federation.y[places].numpy()


def probabilities(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_hand(name: str, logits: np.ndarray, y: np.ndarray) -> float | None:
    """A metric by scikit-learn, or by a loop; None where it does not exist.

    One class against the rest, and their mean, where there are three.
    """
    p, classes = probabilities(logits), logits.shape[1]
    judged = [1] if classes == 2 else list(range(classes))
    both = [c for c in judged if 0 < (y == c).sum() < len(y)]
    if name == "accuracy":
        return float(reference.accuracy_score(y, logits.argmax(1)))
    if name == "loss":
        return float(np.mean([-np.log(p[i, label]) for i, label in enumerate(y)]))
    if name == "balanced_accuracy":
        return float(np.mean([(logits.argmax(1) == y)[y == c].mean() for c in np.unique(y)]))
    if name == "calibration_error":
        confidence, right, total = p.max(1), logits.argmax(1) == y, 0.0
        for low in range(15):
            inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
            total += abs((right[inside] - confidence[inside]).sum())
        return total / len(y)
    if name == "f1":
        involved = [c for c in judged if (y == c).any() or (logits.argmax(1) == c).any()]
        scores = [
            reference.f1_score(y == c, logits.argmax(1) == c, zero_division=0) for c in involved
        ]
        return float(np.mean(scores)) if scores else None
    if not both:
        return None
    if name == "sensitivity_at_specificity":
        found = []
        for c in both:
            false, true, _ = reference.roc_curve(y == c, p[:, c], drop_intermediate=False)
            found.append(true[false <= 0.1 + 1e-9].max())
        return float(np.mean(found))
    one = {"auroc": reference.roc_auc_score, "auprc": reference.average_precision_score}[name]
    return float(np.mean([one(y == c, p[:, c]) for c in both]))


def two_classes() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Noisy sites of two classes, of which bo has negatives only."""
    found = sites({"ada": 60, "bo": 40, "cy": 50}, {"ada": [0, 1], "bo": [0], "cy": [0, 1]}, seed=3)
    draw = np.random.default_rng(2)
    return {
        name: ((x + 3 * draw.normal(size=x.shape)).astype(np.float32), y)
        for name, (x, y) in found.items()
    }


@pytest.mark.parametrize(("method", "model"), [("fedavg", "cnn"), ("standalone", "mlp")])
@pytest.mark.parametrize("classes", [2, 3])
def test_every_metric_of_classes(method: str, model: str, classes: int, tmp_path: Path) -> None:
    data = (
        two_classes()
        if classes == 2
        else sites({"ada": 60, "bo": 40, "cy": 50}, {"bo": [0, 2]}, seed=4)
    )
    dataset = eq.from_sites(data)
    wanted = settings(
        method, model, rounds=2, evaluation={"metrics": OPTIONAL, "splits": ["train", "test"]}
    )
    run = played(wanted, tmp_path / "run", data)
    federation, name = federation_of(run, dataset), run.main_model
    rows = {
        (row["client"], row["split"], row["metric"]): row["value"]
        for row in run.table(phase="final")
    }
    seen = set()
    for k, client in enumerate(run.clients):
        net = run.model(name, client, experiment=eq.Experiment(**wanted, dataset=dataset))
        for split in ("train", "test"):
            logits, y = predicted(net, federation, getattr(federation, split)[k])
            for metric in OPTIONAL:
                value = by_hand(metric, logits, y)
                seen.add((metric, value is None))
                if value is None:
                    assert (client, split, metric) not in rows
                else:
                    # Logits are float32: kernels for another memory layout round differently.
                    assert rows[client, split, metric] == pytest.approx(value, abs=1e-7), (
                        client,
                        split,
                        metric,
                    )
    assert {metric for metric, missing in seen if not missing} == set(OPTIONAL)
    if classes == 2:
        assert read_result(run).metric("auroc", name).undefined == ["bo"] and run.final(
            "auroc"
        ).keys() == {
            "ada",
            "cy",
        }


def test_rmse_mae_and_loss_of_values(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(150, 6)).astype(np.float32)
    dataset = eq.from_arrays(
        x, x @ draw.normal(size=6) + 0.3 * draw.normal(size=150), kind="regression"
    )
    wanted: dict[str, Any] = {
        "data": {"clients": 3, "partition": "iid"},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 2,
        "workers": 0,
    }
    run = eq.run(
        {**wanted, "dataset": dataset, "evaluation": {"metrics": ["rmse", "mae", "loss"]}},
        tmp_path / "run",
    )
    federation, net = (
        federation_of(run, dataset),
        run.model("global", experiment=eq.Experiment(**wanted, dataset=dataset)),
    )
    assert run.main_metric == "rmse"
    for k, client in enumerate(run.clients):
        outputs, y = predicted(net, federation, federation.test[k])
        errors = [
            float(out) - (float(true) * run.task.scale + run.task.centre)
            for (out,), true in zip(outputs, y, strict=True)
        ]
        square = sum(error * error for error in errors) / len(errors)
        assert (
            run.final("rmse")[client] == run.final()[client] == pytest.approx(square**0.5, rel=1e-6)
        )  # float32 of the last step
        # what is minimised: standardised
        assert run.final("loss")[client] == pytest.approx(square / run.task.scale**2, rel=1e-6)
        assert run.final("mae")[client] == pytest.approx(
            sum(map(abs, errors)) / len(errors), rel=1e-6
        )
    found = summarise(read_result(run))
    assert (found["worst"], found["best"]) == (max(run.final().values()), min(run.final().values()))
    curve = {
        n: np.mean(
            [
                row["value"]
                for row in run.table(phase="received", split="test", metric="rmse", round=n)
            ]
        )
        for n in (1, 2)
    }
    assert found["best round"] == min(curve, key=lambda n: curve[n])


def test_distances_in_both_spaces(tmp_path: Path) -> None:
    """After one round a client's uploaded model is its Standalone model."""
    wanted = settings("fedavg", "cnn", rounds=1, evaluation={"distances": True})
    together = played(wanted, tmp_path / "together")
    alone = played(settings("standalone", "cnn", rounds=1), tmp_path / "alone")
    federation = federation_of(together, eq.from_sites(sites()))
    rows = {
        (row["client"], row["split"], row["metric"]): row["value"]
        for row in together.table(phase="after_local")
    }
    new = together.model("global")
    for k, client in enumerate(together.clients):
        local = alone.model("personal", client=client)
        x = federation.x[federation.train[k].copy()]
        with torch.no_grad():
            a, b = (net.features(x).flatten(1).double().numpy().mean(0) for net in (local, new))
        assert rows[client, "embedding", "manhattan"] == pytest.approx(
            sum(abs(one - two) for one, two in zip(a, b, strict=True)), rel=1e-6
        )
        cosine = sum(a * b) / (sum(a * a) * sum(b * b)) ** 0.5
        assert rows[client, "embedding", "angle"] == pytest.approx(
            np.arccos(cosine), rel=1e-3, abs=1e-6
        )


def test_megabytes_are_those_of_the_models_sent(tmp_path: Path) -> None:
    run = played(settings("fedavg", rounds=2), tmp_path / "run")
    one = sum(
        tensor.numel() * tensor.element_size()
        for tensor in run.model("global").state_dict().values()
    )
    assert read_result(run).cost["megabytes"] == pytest.approx(
        2 * 2 * len(run.clients) * one / 1e6, rel=1e-12
    )
    phases = [row["seconds"] for row in run.rounds()]
    counted = sum(
        seconds[name] for seconds in phases for name in ("clients", "transport", "aggregation")
    )
    assert read_result(run).cost["seconds"] == pytest.approx(counted)


def test_a_run_without_the_key_is_about_accuracy_as_it_was(tmp_path: Path) -> None:
    run = played(
        settings("fedavg", rounds=1, evaluation={"metrics": ["auroc", "accuracy"]}),
        tmp_path / "run",
    )
    file = run.folder / "experiment.yaml"
    config = yaml.safe_load(file.read_text())
    del config["evaluation"]["main"]
    file.write_text(yaml.safe_dump(config))
    old = Run(run.folder)
    assert (
        old.main_metric == "accuracy"
        and old.final() == run.final("accuracy")
        and summarise(read_result(old))["metric"] == "accuracy"
    )
