"""What follows from summaries that are made up, and what is printed of it: by hand, without an
audit.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import equipoise as eq
from equipoise.auditing.divergence import (
    Distance,
    Moments,
    as_overlap,
    by_labels,
    chance,
    distance,
    label_distances,
)
from equipoise.auditing.findings import Findings, class_moments, findings, note_on
from equipoise.auditing.method import Audit
from equipoise.auditing.running import auditing_of, data_warnings
from equipoise.auditing.summaries import (
    BINS,
    CODES,
    DIRECT,
    MOST_CLASSES,
    Projection,
    classes_of,
    history_features,
    labels_of,
    leading,
    probed,
    rows,
    summarised,
)
from equipoise.auditing.verdict import FEATURES, LABELS, SIZE, Measured, judge
from equipoise.cli import audit, output
from equipoise.data.shift import gaussian_kl
from equipoise.task import Task
from tests.helpers import audits

TWO = Task("classification", (3,), 2, ("no", "yes"))


def summed(clients: dict[str, list[np.ndarray]], **more: Any) -> dict[str, Any]:
    """The state of the server after an audit: of each client the samples of every class, and of all
    rare classes together.
    """
    groups = [[*own, np.zeros((0, own[0].shape[1]))] for own in clients.values()]
    return {
        "clients": list(clients),
        "counts": [[len(z) for z in own[:-1]] for own in groups],
        "numbers": [[len(z) for z in own] for own in groups],
        "sums": [[z.sum(0) for z in own] for own in groups],
        "seconds": [[z.T @ z for z in own] for own in groups],
        "total": 20.0, "width": 3, **more,
    }  # fmt: skip


def drawn(*sizes: tuple[int, int], m: int = 2, seed: int = 0) -> dict[str, list[np.ndarray]]:
    """Clients of so many samples of two classes, which lie apart; client k is moved by k."""
    draw = np.random.default_rng(seed)
    return {
        f"s{k}": [draw.normal(3 * c + k, 1 + c, size=(n, m)) for c, n in enumerate(own)]
        for k, own in enumerate(sizes)
    }


def test_rows_say_how_far_each_client_is_from_the_whole_in_every_respect() -> None:
    data = drawn((30, 10), (20, 40), (3, 0))
    found = findings(summed(data), TWO, "mine", 3, ["first"])
    z = np.concatenate([part for own in data.values() for part in own])
    mean, cov = z.mean(0), np.cov(z.T, ddof=0)
    assert (found.data, found.classes, found.dimensions, found.features) == (
        "mine",
        ("no", "yes"),
        2,
        3,
    )
    assert found.variance == pytest.approx(np.trace(cov) / 20) and found.counts.tolist() == [
        [30, 10],
        [20, 40],
        [3, 0],
    ]
    yes = [own[1] for own in data.values()]
    classes = [np.concatenate([own[c] for own in data.values()]) for c in (0, 1)]
    for row, (name, own) in zip(found.clients, data.items(), strict=True):
        mine = np.concatenate(own)
        assert (row.client, row.samples) == (name, len(mine)) and row.place == pytest.approx(
            (mine.mean(0) - mean) / z.std(0)
        )
        share = len(own[1]) / len(mine)
        assert row.label_distance == pytest.approx(abs(share - sum(map(len, yes)) / len(z)))
        if len(mine) >= 4:
            assert row.kl == pytest.approx(
                gaussian_kl(mine.mean(0), np.cov(mine.T, ddof=0), mean, cov)
            ) and row.kl_chance == chance(len(mine), 2)
            shares = (1 - share, share)  # what everybody's classes would give in these shares
            middle = sum(s * c.mean(0) for s, c in zip(shares, classes, strict=True))
            second = sum(s * c.T @ c / len(c) for s, c in zip(shares, classes, strict=True))
            like = gaussian_kl(
                mine.mean(0), np.cov(mine.T, ddof=0), middle, second - np.outer(middle, middle)
            )
            assert (
                row.kl_beyond_labels == pytest.approx(like)
                and row.note == ""
                and row.shrinkage == 0
            )
            assert (
                row.corrected is not None
                and row.printed is not None
                and row.corrected != row.printed
            )
    few = found.clients[2]
    assert (
        few.shrinkage == pytest.approx(0.25)
        and few.corrected is None
        and few.printed is None
        and few.kl is not None
    )
    assert few.note.startswith(
        "3 samples in 2 dimensions: covariance shrunk by 25 % towards that of all data"
    )
    said = (
        "1 of 3 clients have fewer than 4 samples in 2 dimensions, so their covariances are shrunk "
        "towards that of all data: s2"
    )
    assert found.warnings == ("first", said)


def test_a_client_without_samples_says_nothing_of_labels_and_stands_in_the_middle() -> None:
    data = drawn((30, 10), (30, 10), (0, 0))
    found = findings(summed(data, total=0.5), TWO)
    empty = found.clients[2]
    assert (
        empty.samples,
        empty.kl,
        empty.kl_chance,
        empty.kl_beyond_labels,
        empty.place,
        empty.note,
    ) == (0, None, None, None, (0.0, 0.0), "too few samples")
    assert found.variance == 1.0, "no more than all of it"
    assert found.warnings == ("1 of 3 clients have too few samples to compare their features: s2",)
    two = Measured(np.array([40, 40]), np.zeros(2), np.zeros(2), np.zeros(2), 0.0)
    assert found.verdict.severity["size"] == pytest.approx(1 / 3) and len(two.sizes) == 2
    assert "clients have too few samples to compare their features" not in found.text, (
        "the verdict is on those that have some"
    )


@pytest.mark.parametrize(
    ("task", "names"),
    [
        (Task("classification", (3,), 2), ("0", "1")),
        (Task("regression", (3,), 1), ("0-10 %", "10-20 %")),
        (TWO, ("no", "yes")),
    ],
)
def test_classes_have_names(task: Task, names: tuple[str, ...]) -> None:
    assert findings(summed(drawn((9, 9), (9, 9))), task).classes == names


def test_without_a_direction_that_varies_nothing_is_told_of_features() -> None:
    found = findings(summed(drawn((9, 9), (9, 9), m=0), total=0.0), TWO)
    assert (found.dimensions, found.variance, found.clients[0].place) == (0, 1.0, (0.0, 0.0))
    assert found.warnings == ("no feature varies, so features cannot be compared",)
    one = findings(summed(drawn((9, 9), (9, 9), m=1)), TWO).clients[1].place
    assert one[0] > 0 and one[1] == 0.0, "of one direction there is no second"


@pytest.mark.parametrize(
    ("found", "n", "note"),
    [
        (Distance(None), 1, "too few samples"),
        (Distance(1.0), 50, ""),
        (
            Distance(1.0, 0.0, 0.5, 2),
            5,
            "5 samples in 4 dimensions: covariance shrunk by 50 % towards that of all data; 2 of "
            "4 directions hardly vary",
        ),
        (Distance(1.0, 0.0, 0.0, 1), 50, "1 of 4 directions hardly vary"),
    ],
)
def test_a_note_says_why_a_number_is_not_what_it_seems(found: Distance, n: int, note: str) -> None:
    assert note_on(found, n, 4) == note


def test_an_excess_is_what_is_beyond_chance() -> None:
    assert Distance(1.0, 0.25).excess == 0.75 and Distance(None).excess is None
    assert Distance(None) == Distance(None, 0.0, 0.0, 0), "nothing is known, so nothing is claimed"


def test_a_class_of_few_samples_is_drawn_towards_the_covariance_within_classes() -> None:
    draw = np.random.default_rng(1)
    large, small = draw.normal(size=(50, 2)) * 3, draw.normal(size=(1, 2))
    groups = class_moments(
        np.array([50, 1]),
        np.array([large.sum(0), small.sum(0)]),
        np.array([large.T @ large, small.T @ small]),
    )
    within = 50 * np.cov(large.T, ddof=0) / 51
    assert groups[0].cov == pytest.approx(np.cov(large.T, ddof=0)) and groups[
        1
    ].mean == pytest.approx(small[0])
    assert groups[1].cov == pytest.approx(0.75 * within) and groups[1].number == 1
    (none,) = class_moments(np.array([0]), np.zeros((1, 2)), np.zeros((1, 2, 2)))
    assert none.cov.tolist() == [[0, 0], [0, 0]]


def test_moments_of_nothing_are_zero() -> None:
    none = Moments.of(0, np.zeros(2), np.zeros((2, 2)))
    assert (
        none.number == 0 and none.mean.tolist() == [0, 0] and none.cov.tolist() == [[0, 0], [0, 0]]
    )
    empty = by_labels(np.zeros(1, int), [none], none)
    assert (
        empty.number == 0
        and empty.mean.tolist() == [0, 0]
        and empty.cov.tolist() == [[0, 0], [0, 0]]
    )


@pytest.mark.parametrize(
    ("n", "m", "told"),
    [(1, 2, False), (2, 2, True), (2, 5, False), (3, 5, True), (5, 10, True), (4, 10, False)],
)
def test_below_half_as_many_samples_as_dimensions_and_below_two_nothing_is_told(
    n: int, m: int, told: bool
) -> None:
    found = distance(Moments(n, np.zeros(m), np.eye(m)), Moments(99, np.zeros(m), np.eye(m)))
    assert (found.kl is not None) == told


def test_a_direction_in_which_the_whole_hardly_varies_does_not_decide_alone() -> None:
    """Below a millionth of a millionth of the largest variance, the whole's counts as that."""
    found = distance(
        Moments(100, np.array([0.0, 1e-6]), np.diag([1.0, 0.0])),
        Moments(1e6, np.zeros(2), np.diag([1.0, 0.0])),
    )
    assert found.kl == pytest.approx(0.5 * (0.01 - 1 - math.log(0.01)) + 0.5) and found.flat == 1


def test_the_chance_of_a_label_distance_by_its_formula() -> None:
    _, by_chance = label_distances(np.array([[30, 10], [60, 100]]))
    p, n = 0.45, np.array([40, 160])
    expected = np.sqrt(1 - n / 200) * 2 * np.sqrt(p * (1 - p) / (2 * np.pi * n))
    assert by_chance == pytest.approx(expected)
    assert (
        label_distances(np.array([[0, 0]]))[1].tolist() == [0.0]
        and label_distances(np.eye(9, dtype=int))[1].max() <= 1.0
    )
    assert label_distances(np.ones((40, 40), int) * np.eye(40, dtype=int))[1] == pytest.approx(
        np.ones(40)
    )


# The verdict at its bounds.


def measured(
    k: int = 4,
    size: float = 0.0,
    labels: float = 0.0,
    beyond: float = 0.0,
    features: float = 0.0,
    **more: Any,
) -> Measured:
    return Measured(
        np.full(k, 100), np.full(k, labels), np.full(k, features), np.full(k, beyond), size, **more
    )


def test_a_kind_counts_from_its_bound_on() -> None:
    assert (SIZE, LABELS, FEATURES) == (0.15, 0.08, 0.25)
    kl = next(kl for kl in np.linspace(0.19, 0.22, 30_001) if as_overlap(kl) >= FEATURES)
    for at, below, kind in (
        (measured(size=0.15), measured(size=0.1499), "size"),
        (measured(labels=0.08), measured(labels=0.0799), "labels"),
        (measured(beyond=kl, features=1.0), measured(beyond=kl - 1e-4, features=1.0), "features"),
    ):
        assert judge(at).kinds == (kind,) and judge(below).kinds == ()
    assert judge(measured(size=0.9, labels=0.1)).kinds == ("labels", "size"), (
        "what models see weighs more"
    )


def unknown(k: int, missing: int, **more: Any) -> Measured:
    found = measured(k, labels=0.5, **more)
    gaps = np.where(np.arange(k) < missing, np.nan, 0.0)
    return Measured(found.sizes, found.labels, gaps, gaps, 0.0, found.dimensions)


@pytest.mark.parametrize(
    ("found", "sure"),
    [
        (measured(4, labels=0.5), "clear"), (measured(3, labels=0.5), "likely"), (measured(1), "likely"),
        (unknown(10, 2), "clear"), (unknown(10, 3), "likely"), (unknown(10, 5), "likely"), (unknown(10, 6), "unsure"),
        (measured(0), "unsure"),
    ],
)  # fmt: skip
def test_how_sure_a_verdict_is(found: Measured, sure: str) -> None:
    verdict = judge(found)
    assert verdict.sure == sure and verdict.agreement == 1.0


def test_a_verdict_that_holds_in_nine_of_ten_redraws_is_likely() -> None:
    """Labels of three of ten clients carry it: it falls when clients are drawn without any of them,
    or with too few.
    """
    labels = np.array([0.6, 0.6, 0.6, *[0.0] * 7])
    verdict = judge(Measured(np.full(10, 100), labels, np.zeros(10), np.zeros(10), 0.0))
    draw = np.random.Generator(np.random.PCG64(0))
    again = [labels[draw.integers(0, 10, 10)].mean() >= LABELS for _ in range(400)]
    assert (
        verdict.agreement == np.mean(again)
        and 0.8 <= verdict.agreement < 0.95
        and verdict.sure == "likely"
    )
    assert (
        judge(Measured(np.full(10, 100), labels, np.zeros(10), np.zeros(10), 0.0), seed=1).agreement
        != verdict.agreement
    )


@pytest.mark.parametrize(
    ("found", "said", "unsaid"),
    [
        (measured(labels=0.5, features=2.0, beyond=0.1), "Labels explain 95 % of the difference in features.", "too few"),
        (measured(beyond=2.0, features=2.0), "The clients differ mainly in their features.", "Labels explain"),
        (measured(labels=0.5, features=-1.0, beyond=-1.0), "labels 0.50, features beyond what labels explain 0.00.", "Labels explain"),
        (measured(labels=0.5, features=1.0, beyond=2.0), "Labels explain 0 % of the difference", "too few"),
        (measured(labels=0.5, features=2.0, beyond=1.2, size=0.2), "differ mainly in their features, and also in labels and size.", "too few"),
        (measured(labels=-0.2), "On a scale from 0 to 1: size 0.00, labels 0.00,", "-0.2"),
        (unknown(4, 1), "1 of 4 clients have too few samples to compare their features.", "unknown"),
        (unknown(4, 4), "features beyond what labels explain unknown.", "too few samples"),
        (unknown(4, 4, dimensions=2), "4 of 4 clients have too few samples to compare their features.", "heavy tails"),
        (measured(beyond=2.0, features=2.0, dimensions=11), "Most clients have fewer than 10 samples for each of 11 dimensions", "too few"),
        (measured(2), "This is likely: the same verdict in 100 % of 400 resamples of the clients.", "one client"),
        (measured(1), "There is one client, so there is nothing to compare.", "differ"),
    ],
)  # fmt: skip
def test_what_a_verdict_says(found: Measured, said: str, unsaid: str) -> None:
    text = judge(found).text
    assert said in text and unsaid not in text


def test_no_client_is_not_thin() -> None:
    assert not Measured(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0), 0.0, 3).thin


# What clients send.


class Has:
    """A client with these samples, in batches of two."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, task: Task) -> None:
        self.task, self.x = task, x
        self.train: Any = type("Some", (), {"__len__": lambda own: len(y), "y": y})()

    def batches(self, size: int) -> Any:
        return [
            SimpleNamespace(x=self.x[k : k + 2], y=self.train.y[k : k + 2])
            for k in range(0, len(self.x), 2)
        ]


def has(counts: tuple[int, ...], features: int = 3) -> tuple[Any, np.ndarray, np.ndarray]:
    y = np.repeat(np.arange(len(counts)), counts)
    x = np.random.default_rng(0).normal(size=(len(y), features)).astype(np.float32)
    return (
        Has(
            torch.from_numpy(x),
            torch.from_numpy(y),
            Task("classification", (features,), len(counts)),
        ),
        x.astype(np.float64),
        y,
    )


def test_a_client_sends_sums_of_its_classes_and_of_all_rare_ones_together() -> None:
    client, x, y = has((6, 3, 2, 0))
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 2)))[0]
    sent = {
        name: value.numpy()
        for name, value in summarised(client, Projection((3,), 0, basis=basis), 5).items()
    }
    z = x @ basis
    assert sent["counts"].tolist() == [6, 3, 2, 0] and sent["numbers"].tolist() == [6, 0, 0, 0, 5]
    for place, of in ((0, y == 0), (4, (y == 1) | (y == 2))):
        assert sent["sums"][place] == pytest.approx(z[of].sum(0)) and sent["seconds"][
            place
        ] == pytest.approx(z[of].T @ z[of])
    assert not sent["sums"][1:4].any() and not sent["seconds"][1:4].any()
    few = summarised(has((6, 3, 1, 0))[0], Projection((3,), 0, basis=basis), 5)
    assert few["numbers"].tolist() == [6, 0, 0, 0, 0], "four are not enough"
    client, x, _ = has((1,) * (MOST_CLASSES + 1))
    many = summarised(client, Projection((3,), 0, basis=basis), 5)
    assert many["numbers"].tolist() == [MOST_CLASSES + 1] and many["sums"].numpy() == pytest.approx(
        (x @ basis).sum(0)[None]
    )


def test_a_probe_is_number_sum_squares_and_moments_along_directions() -> None:
    client, x, _ = has((3, 2))
    directions = np.random.default_rng(2).normal(size=(3, 2))
    sent = probed(client, Projection((3,), 0), directions)
    assert sent["number"] == 5 and sent["square"] == pytest.approx((x**2).sum())
    assert sent["sum"].numpy() == pytest.approx(x.sum(0)) and sent[
        "moments"
    ].numpy() == pytest.approx(x.T @ x @ directions)
    none = probed(has((0, 0))[0], Projection((3,), 0), directions)
    assert (
        none["number"] == 0
        and none["square"] == 0
        and not none["moments"].any()
        and not list(rows(has((0, 0))[0], Projection((3,), 0)))
    )


def test_leading_directions_point_to_where_their_entries_are_positive_in_sum() -> None:
    cov = np.diag([1.0, 5.0, 3.0])
    basis = leading(cov @ -np.eye(3), -np.eye(3), 2)
    assert basis == pytest.approx(np.eye(3)[:, [1, 2]])
    assert leading(np.zeros((3, 3)), np.eye(3), 2).shape == (3, 0)
    tiny = np.diag([1.0, 2e-9, 1e-10])
    assert leading(tiny, np.eye(3), 3).shape == (3, 2), "a billionth of the largest is none"
    skew = np.array([[2.0, 1.0], [0.0, 1.0]])  # rounding makes it a little unsymmetric
    assert leading(skew, np.eye(2), 1)[:, 0] == pytest.approx(
        np.linalg.eigh((skew + skew.T) / 2)[1][:, 1]
        * np.sign(np.linalg.eigh((skew + skew.T) / 2)[1][:, 1].sum())
    )


def test_features_of_histories_are_as_wide_as_they_say() -> None:
    assert (
        Projection((51, 4), 0, histories=True).width
        == CODES + 5
        == history_features(torch.zeros(1, 3, 4)).shape[1]
        == 261
    )
    assert Projection((2, 3), 0).width == 6 and Projection((2, 600), 0).width == 1024
    x = torch.zeros(1, 4, 4)
    x[0, 0, 2], x[0, 1:, 0] = (
        9.0,
        torch.tensor([257.0, 1.0, 0.0]),
    )  # more events than there are places; codes in buckets
    assert history_features(x)[0, :2].tolist() == pytest.approx(
        [1 / 3, 2 / 3]
    ) and history_features(x)[0, 259] == pytest.approx(math.log(4))


def test_probes_of_all_clients_are_the_same_and_wide_enough() -> None:
    one = Projection((200,), 5).probe(30)
    assert (
        one.shape == (200, 30)
        and (one == Projection((200,), 5).probe(30)).all()
        and not (one == Projection((200,), 6).probe(30)).any()
    )
    expected = np.random.Generator(np.random.PCG64([5, 1])).standard_normal((200, 30))
    assert (one == expected).all(), "other numbers would give other audits of the same data"
    assert Audit(dimensions=7)._probes == 24 and DIRECT == 128


@pytest.mark.parametrize(
    ("value", "label"),
    [(-1.2817, 0), (-1.2815, 1), (-0.0001, 4), (0.0001, 5), (1.2815, 8), (1.2817, 9)],
)
def test_bins_of_a_number_are_equally_likely_under_a_gaussian(value: float, label: int) -> None:
    task = Task("regression", (3,), 1)
    assert (
        labels_of(torch.tensor([value]), task).tolist() == [label]
        and classes_of(task) == BINS == 10
        and classes_of(TWO) == 2
    )


def test_an_audit_scales_columns_by_all_clients_together_unless_told_otherwise() -> None:
    x = np.random.default_rng(0).normal(size=(12, 2))
    plain, table = (
        eq.from_arrays(x, np.arange(12) % 2, **more) for more in ({}, {"columns": ["p", "q"]})
    )
    wanted = eq.Experiment(
        seed=7, workers=0, participation={"deadline": 12.5}, data={"partition": "iid", "clients": 3}
    )
    made = auditing_of(wanted, table, 4)
    assert (
        made.data.normalise,
        made.seed,
        made.workers,
        made.participation.deadline,
        made.rounds,
    ) == ("pooled", 7, 0, 12.5, 1)
    assert (
        made.method == Audit(dimensions=4)
        and made.dataset is table
        and made.evaluation.every == 0
        and made.evaluation.splits == ()
    )
    assert auditing_of(wanted, plain).data.normalise == wanted.data.normalise and auditing_of(
        wanted, plain
    ).method == Audit(dimensions=10)
    own = eq.Experiment(data={"normalise": "client"})
    assert auditing_of(own, table).data.normalise == "client"
    (said,) = data_warnings(own, table)
    assert "which hides shifts; use normalise: pooled" in said
    assert data_warnings(own, plain) == [] and data_warnings(made, table) == []


# What is printed and kept.


def printed(found: Findings, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    screen = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=screen, width=400, color_system=None))
    audit.show(found)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_an_audit_prints_a_row_for_every_client_and_its_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = [
        audits.row("a", 1200, note="few"),
        audits.row(
            "b", 5, None, kl_chance=None, kl_beyond_labels=None, corrected=None, printed=-99.9996
        ),
    ]
    found = audits.findings(some, np.array([[1000, 200], [0, 5]]), warnings=("careful",))
    lines = printed(found, monkeypatch)
    assert (
        lines[0]
        == "digits: 2 clients, 1,205 training samples; features compared in 2 of 8 directions, which hold 62 % of their variance"
    )
    assert lines[1].split() == [
        "client",
        "samples",
        "labels",
        "chance",
        "KL",
        "chance",
        "beyond",
        "Thm",
        "2.2",
        "printed",
    ]
    assert lines[2].split() == [
        "a",
        "1200",
        "0.100",
        "0.050",
        "0.500",
        "0.250",
        "0.125",
        "1.500",
        "150",
    ]
    assert lines[3].split() == ["b", "5", "0.100", "0.050", "-100.000"]
    assert lines[4].startswith("labels: total variation") and lines[5] == "a: few"
    assert lines[6] == "samples by label" and [line.split() for line in lines[7:10]] == [
        ["client", "class", "0", "class", "1"],
        ["a", "1000", "200"],
        ["b", "0", "5"],
    ]
    assert lines[10:] == ["warning: careful", f"verdict: {audits.SAID}"]
    assert (
        "digits: 1 client, 100 training samples"
        in printed(audits.findings([audits.row()]), monkeypatch)[0]
    )


@pytest.mark.parametrize(("clients", "more"), [(60, False), (61, True)])
def test_of_many_clients_the_farthest_sixty_are_printed(
    clients: int, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [
        audits.row(f"c{k}", 10, None if k == 60 else k / 10, note="n" if k in (0, 60) else "")
        for k in range(clients)
    ]
    lines = printed(audits.findings(some), monkeypatch)
    first = [line.split()[0] for line in lines[2:62]]
    assert first == (
        [f"c{k}" for k in reversed(range(60))] if more else [f"c{k}" for k in range(60)]
    )
    assert ("... and 1 more clients, which differ less; --json has all" in lines) == more
    assert ("samples by label" in lines) != more and "c0: n" in lines and "c60: n" not in lines


@pytest.mark.parametrize(("classes", "shown"), [(12, 12), (13, 12)])
def test_twelve_labels_have_a_column(
    classes: int, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = audits.findings([audits.row("a")], np.arange(1, classes + 1)[None])
    lines = printed(found, monkeypatch)
    place = lines.index("samples by label")
    assert lines[place + 1].endswith("..." if classes > 12 else "class 11")
    assert lines[place + 2].split() == ["a", *map(str, range(1, shown + 1))]


def test_an_audit_is_saved_with_all_it_found_and_drawn_in_two_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "equipoise.report.drawing.encoded",
        lambda draw, kind: f"{draw.func.__name__} {kind}".encode(),
    )
    found = audits.findings(
        [audits.row("a"), audits.row("b")], warnings=("w",), facts={"notes": ["n"]}
    )
    audit.save(found, tmp_path / "deep" / "out")
    audit.save(found, tmp_path / "deep" / "out")
    again = Findings.read(tmp_path / "deep" / "out" / "audit.json")
    assert (
        again.plain() == found.plain()
        and again.clients == found.clients
        and again.facts == {"notes": ["n"]}
        and again.warnings == ("w",)
    )
    assert json.loads((tmp_path / "deep" / "out" / "audit.json").read_text())["clients"][1][
        "labels"
    ] == [100, 0, 0]
    assert (tmp_path / "deep" / "out" / "sizes.svg").read_text() == "by_size svg" and len(
        list((tmp_path / "deep" / "out").iterdir())
    ) == 9


def test_what_the_page_says_of_directions_and_of_samples_in_a_sum_is_the_default() -> None:
    assert (Audit().dimensions, Audit().least) == (10, 5)
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert "along some ten directions" in text and "A sum is of five samples or more" in text
