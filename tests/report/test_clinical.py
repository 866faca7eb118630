"""What a page shows to clinical readers, against scikit-learn and plain numpy on the scores that
were counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from sklearn.metrics import roc_auc_score

from equipoise import metrics
from equipoise.metrics import score_histograms
from equipoise.metrics.diagnostic_intervals import limits_of
from equipoise.report import clinical, drawing
from equipoise.runs import ModelResult, RunResult
from equipoise.runs.clinical import clinical_values, unequal
from equipoise.runs.curves import History
from equipoise.runs.result import RunDetails
from equipoise.task import Task
from tests.helpers.stores import made_up_result

MEASURES = {name: getattr(metrics, name) for name in score_histograms.MEASURES}
# Scores of two positives and three negatives in per cent, whose curve can be read off.
FEW = score_histograms.counted(
    [[0.1, 0.9], [0.4, 0.6], [0.4, 0.6], [0.9, 0.1], [0.9, 0.1]], [1, 1, 0, 0, 0]
)


def scored(
    samples: int, classes: int, seed: int, frequent: float = 0.7
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities in whole per cent, and labels of which the first class has this share."""
    draw = np.random.default_rng(seed)
    y = np.where(draw.random(samples) < frequent, 0, draw.integers(1, classes, samples))
    whole = draw.multinomial(100, np.full(classes, 1 / classes), samples)
    return whole / 100, y


def made_up(
    sites: dict[str, tuple[np.ndarray, np.ndarray]],
    classes: int,
    models: Sequence[str] = ("global",),
    **more: object,
) -> RunResult:
    """Return the result of a run whose clients sent these scores."""
    tables = {site: score_histograms.counted(*found) for site, found in sites.items()}
    names = ("well", "ill") if classes == 2 else ()
    exact = {}
    for name, function in MEASURES.items():
        values = {site: function(*found) for site, found in sites.items()}
        exact[name] = {site: value for site, value in values.items() if not np.isnan(value)}
    measures = clinical_values(tables, exact)
    shown = measures if unequal(tables) else {}
    empty = History([], [], np.zeros((0, 0)), np.zeros(0))
    details = RunDetails(
        history=empty,
        weights=empty,
        mean_weights={},
        rounds_counted={},
        rejected={},
        histograms=dict.fromkeys(models, tables),
        clinical=dict.fromkeys(models, measures),
    )
    return replace(
        made_up_result("fedavg", 1, [0.5]),
        task=Task("classification", (3,), classes, class_names=names),
        models={name: ModelResult(name, {}, shown) for name in models},
        details=details,
        **{"clients": list(tables), **more},
    )


def test_two_classes_have_a_curve_of_the_second_one_for_every_model() -> None:
    sites = {"north": scored(40, 2, 1), "south": scored(35, 2, 2)}
    run = made_up(sites, 2, models=["global", "per-client"], clients=["north", "south", "west"])
    found = clinical.curves_of(run)
    assert list(found) == ["roc", "calibration", "roc_per_client", "calibration_per_client"]
    assert found["roc"].title == "ROC: ill against the other class, global model"
    assert (
        found["calibration_per_client"].title
        == "Calibration: ill against the other class, per-client model"
    )
    areas = ", ".join(
        f"{site} {100 * roc_auc_score(y, p[:, 1]):.1f}" for site, (p, y) in sites.items()
    )
    assert found["roc"].text.startswith(f"AUROC in %: {areas}. ")
    assert found["roc"].text.endswith(
        "1 of 3 clients sent no counts: fewer than 30 test samples, a diverged model, or they may not."
    )
    assert "30 % are ill" in found["calibration"].text
    shared = clinical.curves_of(
        made_up(sites, 2, main_split="shared", clients=["north", "south", "west"])
    )
    assert shared["roc"].text.endswith("no single score left a client.")
    assert clinical.curves_of(made_up(sites, 2))["roc"].text.endswith(
        "no single score left a client."
    )


def test_of_three_to_five_unequal_classes_each_is_judged_against_the_rest() -> None:
    p, y = scored(60, 3, 3)
    found = clinical.curves_of(made_up({"north": (p, y)}, 3))
    assert list(found) == [
        "roc_0",
        "calibration_0",
        "roc_1",
        "calibration_1",
        "roc_2",
        "calibration_2",
    ]
    assert found["roc_2"].title == "ROC: 2 against the rest, global model"
    assert found["roc_2"].text.startswith(
        f"AUROC in %: north {100 * roc_auc_score(y == 2, p[:, 2]):.1f} ± "
    )
    even = (p, np.arange(60) % 3)
    assert clinical.curves_of(made_up({"north": even}, 3)) == {}, (
        "accuracy tells enough where classes are equal"
    )
    assert clinical.curves_of(
        made_up({"north": (p[:, :2] / p[:, :2].sum(1, keepdims=True), np.arange(60) % 2)}, 2)
    )
    assert len(clinical.curves_of(made_up({"north": scored(80, 5, 4)}, 5))) == 10
    assert (
        clinical.curves_of(made_up({"north": scored(80, 6, 4)}, 6))
        == {}
        == clinical.curves_of(made_up({}, 2))
    )


@pytest.mark.parametrize("count", [12, 13])
def test_more_than_twelve_sites_are_one_line(count: int) -> None:
    sites = {f"site {k}": scored(30, 2, k) for k in range(count)}
    _, text, draw = clinical.curves_of(made_up(sites, 2))["roc"]
    labels = [line.get_text() for line in draw().axes[0].get_legend().get_texts()]
    assert labels == (list(sites) if count == 12 else [drawing.short("all clients together")])
    if count == 13:
        p, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
        assert text.startswith(
            f"AUROC in %: all clients together {100 * roc_auc_score(y, p[:, 1]):.1f} ± "
        )


def test_a_site_with_one_class_has_no_area() -> None:
    p, _ = scored(30, 2, 1)
    found = clinical.curves_of(
        made_up({"north": scored(40, 2, 2), "south": (p, np.zeros(30, int))}, 2)
    )
    assert ", south –. " in found["roc"].text


def test_the_tables_hold_measures_with_intervals_and_what_thresholds_would_give() -> None:
    sites = {"north": scored(40, 2, 1), "south": scored(35, 2, 2)}
    measures, thresholds = clinical.tables_of(made_up(sites, 2, clients=["north", "south", "west"]))
    for note in ("calibration error: above 0", "AUROC, AUPRC", "fewer than 20", "1 of 3 clients"):
        assert note in measures["text"]
    assert measures["header"] == [
        "client",
        "AUROC",
        "AUPRC",
        "balanced accuracy",
        "sensitivity at 90 % specificity",
        "calibration error",
    ]
    for row, (site, found) in zip(measures["rows"], sites.items(), strict=True):
        assert row[0] == site
        for cell, (name, function) in zip(row[1:], MEASURES.items(), strict=True):
            value = function(*found)
            ends = limits_of(name, score_histograms.counted(*found), value)
            assert cell.startswith(f"{100 * value:.1f}")
            assert ("to" in cell) == (ends.low is not None)
    p, y = (np.concatenate(parts) for parts in zip(*sites.values(), strict=True))
    score, ill = np.rint(100 * p[:, 1]), y == 1
    assert thresholds["header"] == [
        "threshold",
        "sensitivity in %",
        "specificity in %",
        "PPV in %",
        "NPV in %",
    ]
    assert [row[0] for row in thresholds["rows"]] == [
        f"{cut} %" for cut in (10, 20, 30, 50, 70, 80, 90)
    ]
    called = score >= 50
    wanted = [
        (called & ill).sum() / ill.sum(),
        (~called & ~ill).sum() / (~ill).sum(),
        ill[called].mean(),
        (~ill)[~called].mean(),
    ]
    assert thresholds["rows"][3][1:] == [f"{100 * value:.1f}" for value in wanted]
    assert "called ill" in thresholds["text"] and "75 test samples" in thresholds["text"]
    shared = clinical.tables_of(made_up(sites, 2, main_split="shared", clients=["x"]))[0]
    assert "sent no counts" not in shared["text"]
    assert [
        table["header"][0] for table in clinical.tables_of(made_up({"north": scored(60, 3, 3)}, 3))
    ] == ["client"]
    assert clinical.tables_of(made_up({}, 2)) == []


def test_the_roc_curve_rises_as_the_threshold_falls() -> None:
    sites = [f"_{k}" for k in range(9)]
    (axes,) = clinical.roc(dict.fromkeys(sites, FEW), 1).axes
    *lines, diagonal = axes.lines
    way = list(dict.fromkeys((round(x, 6), round(y, 6)) for x, y in lines[0].get_xydata()))
    assert way == [(0, 0), (0, 50), (33.333333, 100), (100, 100)], (
        "90 %: one ill; 60 %: the other and one of three well; 10 %: all"
    )
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-.", ":"] * 2 + ["-"]
    assert [to_hex(line.get_color()) for line in lines] == [*drawing.COLOURS, drawing.COLOURS[0]]
    assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]
    assert axes.get_xlim() == axes.get_ylim() == (-1, 101)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("100 - specificity in %", "sensitivity in %")
    assert [text.get_text().strip() for text in axes.get_legend().get_texts()] == sites


def test_the_calibration_curve_has_shares_over_scores() -> None:
    sites = [f"_{k}" for k in range(9)]
    (axes,) = clinical.calibration(dict.fromkeys(sites, 20 * FEW), 1).axes
    *lines, diagonal = axes.lines
    wanted = [[10, 0], [60, 50], [90, 100]]
    assert np.allclose(lines[8].get_xydata(), wanted, atol=0.6), "to half a bin"
    assert all(np.allclose(marks.get_offsets(), wanted, atol=0.6) for marks in axes.collections)
    assert all(np.allclose(marks.get_sizes(), [66, 66, 36]) for marks in axes.collections), (
        "two of two, two of two, one of two"
    )
    colours = [*drawing.COLOURS, drawing.COLOURS[0]]
    assert (
        [to_hex(line.get_color()) for line in lines]
        == [to_hex(m.get_facecolor()[0]) for m in axes.collections]
        == colours
    )
    shapes = [marks.get_paths()[0].vertices.tolist() for marks in axes.collections]
    assert shapes[0] == shapes[8] != shapes[1] and len({str(shape) for shape in shapes}) == 8
    assert diagonal.get_xydata().tolist() == [
        [0, 0],
        [100, 100],
    ] and axes.get_xlim() == axes.get_ylim() == (-1, 101)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("score in %", "share that has the class in %")
    assert [text.get_text().strip() for text in axes.get_legend().get_texts()] == sites


def test_a_point_of_a_calibration_curve_is_of_twenty_samples_or_more() -> None:
    bins = [(0.05, 0.0, 12), (0.15, 0.5, 12), (0.5, 0.5, 25), (0.95, 1.0, 3)]
    merged = clinical.merged_bins(bins)
    assert [count for _, _, count in merged] == [24, 28]
    assert merged[0][:2] == pytest.approx((0.1, 0.25))
    assert clinical.merged_bins([(0.3, 1.0, 4)]) == [(0.3, 1.0, 4)], "few are better than none"


def test_sites_with_few_samples_share_one_calibration_curve() -> None:
    lines, small = clinical.calibration_groups({"a": 20 * FEW, "b": 2 * FEW, "c": 3 * FEW})
    assert list(lines) == ["a", "2 small sites together"] and small == ["b", "c"]
    assert lines["2 small sites together"].sum() == 5 * FEW.sum()
    lines, small = clinical.calibration_groups({"b": FEW, "c": FEW})
    assert list(lines) == [clinical.TOGETHER]
    assert clinical.calibration_groups({"a": FEW})[0].keys() == {"a"}, "one site is not pooled"
