"""FairFed: the paper's equations by hand, whole rounds against predictions of the model, and what
it reduces to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import Federation, federate
from equipoise.methods.fairfed import FairFed
from equipoise.records import PerClient, State
from equipoise.runs import Run, read_result
from tests.helpers.digits import replies, server
from tests.helpers.group_sites import experiment, finished, hospitals, write_sites


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sites(tmp_path_factory.mktemp("hospitals"), hospitals())


def omega(
    method: FairFed, sizes: list[int], before: dict[str, float], **entries: Any
) -> list[float]:
    ups = replies([[0.0]] * len(sizes), **entries)
    state = State(omega=PerClient().put(before))
    after = method.observe(server(sizes), state, ups)
    return [after.omega[client] for client in ups.ids]


def test_weights_follow_equation_6_with_the_papers_form_of_the_global_metric() -> None:
    # Positives of A = 0 and A = 1 (the larger group), and how many of them are recognised.
    positives = np.array([[10, 30], [20, 40], [5, 25]])
    found = np.array([[4, 27], [18, 30], [5, 5]])
    correct, samples = [70, 90, 40], [100, 150, 50]
    n = np.array(samples)
    # F_global = sum_k n_k/n sum_a (-1)^a P(Y'=1|a,Y=1,k) P(a,Y=1|k) / P(a,Y=1)
    joint = positives / n[:, None]
    whole = positives.sum(0) / n.sum()
    terms = (n / n.sum())[:, None] * (found / positives) * joint / whole
    f_global = float((terms[:, 0] - terms[:, 1]).sum())
    f_k = found[:, 0] / positives[:, 0] - found[:, 1] / positives[:, 1]
    delta = np.abs(f_global - f_k)
    sizes = [50, 30, 20]
    expected = np.array(sizes) / 100 - 0.3 * (delta - delta.mean())
    got = omega(
        FairFed(beta=0.3),
        sizes,
        {},
        correct=correct,
        samples=samples,
        groups=[["f", "m"]] * 3,
        called=found.tolist(),
        counted=positives.tolist(),
    )
    assert got == pytest.approx(expected.tolist())
    assert sum(got) == pytest.approx(1)


def test_a_client_without_one_group_is_judged_by_its_accuracy() -> None:
    entries = {
        "correct": [50, 40, 90],
        "samples": [100, 50, 100],
        "groups": [["f", "m"], ["m"], ["f", "m"]],
        "called": [[5, 8], [20], [2, 9]],
        "counted": [[10, 10], [30], [4, 10]],
    }
    before = {"0": 0.2, "1": 0.5, "2": 0.3}
    f_global = 7 / 14 - 37 / 50
    delta = np.array(
        [abs(f_global - (0.5 - 0.8)), abs(0.8 - 180 / 250), abs(f_global - (0.5 - 0.9))]
    )
    expected = np.array([0.2, 0.5, 0.3]) - 2 * (delta - delta.mean())
    method = FairFed(beta=2)
    ups = replies([[0.0]] * 3, **entries)
    state = State(omega=PerClient().put(dict(zip(ups.ids, before.values(), strict=True))))
    after = method.observe(server([1, 1, 1]), state, ups)
    assert [after.omega[client] for client in ups.ids] == pytest.approx(expected.tolist())


def test_weights_below_0_do_not_count_and_if_none_is_left_sizes_do() -> None:
    ups = replies([[0.0]] * 2)
    state = State(omega=PerClient().put(dict(zip(ups.ids, [-0.2, 0.4], strict=True))))
    assert FairFed().weights(server([3, 5]), state, ups).shares.tolist() == [0, 0.4]
    state = State(omega=PerClient().put(dict(zip(ups.ids, [-0.2, -0.1], strict=True))))
    assert FairFed().weights(server([3, 5]), state, ups).shares.tolist() == [3, 5]


def distances(model: torch.nn.Module, federation: Federation, metric: str) -> np.ndarray:
    """Return Delta_k of a model on the training data, from its predictions alone."""
    assert federation.groups is not None
    called, positive, sex, owner, right = [], [], [], [], []
    for number, rows in enumerate(federation.train):
        with torch.no_grad():
            predicted = model(federation.x[rows]).argmax(1).numpy()
        truth = federation.y[rows].numpy()
        called += predicted.tolist()
        positive += truth.tolist()
        right += (predicted == truth).tolist()
        sex += federation.groups.rows(rows).names_of("sex")
        owner += [number] * len(rows)
    c, p, s, o = np.array(called), np.array(positive), np.array(sex), np.array(owner)
    use = p == 1 if metric == "opportunity" else np.ones(len(p), dtype=bool)
    most = max(("f", "m"), key=lambda name: ((s == name) & use).sum())

    def fairness(mask: np.ndarray) -> float:
        first, second = (c[mask & use & (s != most)], c[mask & use & (s == most)])
        return float(first.mean() - second.mean())

    every = fairness(np.ones(len(c), dtype=bool))
    return np.array([abs(every - fairness(o == k)) for k in range(len(federation.ids))])


@pytest.mark.parametrize("metric", ["opportunity", "parity"])
def test_two_rounds_have_the_weights_of_a_reference(
    tmp_path: Path, folder: Path, metric: str
) -> None:
    method = {"name": "fairfed", "beta": 0.4, "metric": metric}
    run = finished(tmp_path / "two", folder, method=method, rounds=2)
    start = finished(tmp_path / "start", folder, rounds=1, training={"lr": 1e-30})
    one = finished(tmp_path / "one", folder, method=method, rounds=1)
    federation = federate(eq.DataConfig(**experiment(folder)["data"]), run.config["seed"])
    weights = federation.train.sizes / federation.train.sizes.sum()
    for number, before in enumerate((start, one), start=1):
        delta = distances(before.model("global"), federation, metric)
        weights = weights - 0.4 * (delta - delta.mean())
        shares = np.maximum(weights, 0) / np.maximum(weights, 0).sum()
        recorded = [row["share"] for row in run.weights() if row["round"] == number]
        assert recorded == pytest.approx(shares.tolist())


def same(first: Run, second: Run) -> bool:
    theirs = second.model("global").state_dict()
    return all(torch.equal(v, theirs[k]) for k, v in first.model("global").state_dict().items())


def test_with_beta_0_it_is_fedavg(tmp_path: Path, folder: Path) -> None:
    plain = finished(tmp_path / "plain", folder)
    none = finished(tmp_path / "none", folder, method={"name": "fairfed", "beta": 0})
    own = finished(tmp_path / "own", folder, method={"name": "fairfed", "beta": 1})
    for name, value in plain.model("global").state_dict().items():
        assert torch.allclose(value, none.model("global").state_dict()[name], atol=1e-7)
    assert not same(plain, own)


def test_poise_finishes_it_and_its_rule_weighs_other_methods(tmp_path: Path, folder: Path) -> None:
    finished_by_poise = finished(
        tmp_path / "a", folder, method={"name": "fairfed", "finish": "poise"}
    )
    assert read_result(finished_by_poise).main_model == "personal"
    finished(tmp_path / "b", folder, method={"name": "fedprox", "weights": "fairfed"})


def test_a_column_or_class_that_there_is_not_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"'race'.*sex"):
        finished(tmp_path / "a", folder, method={"name": "fairfed", "column": "race"})
    with pytest.raises(ValueError, match="one of the 2 classes.*got 2"):
        finished(tmp_path / "b", folder, method={"name": "fairfed", "positive": 2})


def test_a_client_without_samples_reports_none() -> None:
    entries = {
        "correct": [0, 5],
        "samples": [0, 10],
        "groups": [[], ["f", "m"]],
        "called": [[], [1, 2]],
    }
    got = omega(FairFed(), [0, 10], {}, counted=[[], [4, 4]], **entries)
    assert np.isfinite(got).all()
