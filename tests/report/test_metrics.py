"""Reports about other metrics than accuracy, and headlines that say no more than the statistics."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.comparison import Comparison, formats, opened
from equipoise.comparison.table import Failure
from equipoise.metrics import score_histograms
from equipoise.metrics.registry import find
from equipoise.report import figures, report
from equipoise.report.cards import cards, points, written
from equipoise.report.clinical import calibration
from equipoise.report.parts import metrics_of_several
from equipoise.report.verdict import best_methods
from equipoise.runs import Run, read_result
from equipoise.runs.summary import summarise
from equipoise.task import Task
from tests.helpers.stores import change, entry, made_up_result, made_up_run


def made_up(
    averages: dict[str, list[float]],
    metric: str = "accuracy",
    partition: str = "iid",
    **more: object,
) -> Comparison:
    """Methods with these averages by seed; client `low` is a tenth below, client `high` a tenth
    above. Alone they have 0.5 and 0.7.
    """
    entries = []
    for method, by_seed in averages.items():
        for seed, value in enumerate(by_seed):
            if math.isnan(value):
                continue
            values = {"low": value - 0.1, "high": value + 0.1}
            run = made_up_result(method, seed, values, metric, partition)
            alone = made_up_result("standalone", seed, {"low": 0.5, "high": 0.7}, metric, partition)
            entries.append(entry(method, run, alone))
    return Comparison(entries, "fedavg", **more)  # type: ignore[arg-type]


def test_one_seed_speaks_of_one_run() -> None:
    said = best_methods(made_up({"fedavg": [0.7], "fedakd": [0.8]}))
    assert (
        said
        == "fedakd has the best average accuracy (80.0 %) in this one run per method. fedavg and fedakd harmed nobody in this one run per method."
    )
    errors = best_methods(made_up({"fedavg": [0.7], "fedakd": [0.8]}, "rmse"))
    assert errors.startswith(
        "fedavg has the lowest average RMSE (0.7000) in this one run per method. fedavg and fedakd "
        "harmed the fewest clients (100.0 %)"
    )


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("mae", "lowest average MAE (0.7000)"),
        ("loss", "lowest average loss (0.7000)"),
        ("c_index_error", "lowest average C-index error (70.0 %)"),
        ("auroc", "best average AUROC (80.0 %)"),
    ],
)
def test_the_headline_names_the_metric(metric: str, words: str) -> None:
    assert words in best_methods(made_up({"fedavg": [0.7], "fedakd": [0.8]}, metric))
    several = made_up({"fedavg": [0.7, 0.8, 0.9], "fedakd": [0.71, 0.8, 0.91]}, metric)
    assert words.partition(" (")[0] in best_methods(several)
    single = best_methods(made_up({"standalone": [0.6], "fedavg": [0.7]}, metric))
    assert f"as {words.partition(' ')[2].partition(' (')[0]}," in single


def test_several_seeds_are_told_apart_by_their_intervals() -> None:
    clear = made_up({"fedavg": [0.70, 0.71, 0.72], "fedakd": [0.80, 0.81, 0.82]})
    assert best_methods(clear).startswith(
        "fedakd has the best average accuracy (81.0 %), over 3 seeds."
    )
    close = made_up(
        {"fedavg": [0.70, 0.75, 0.80], "fedakd": [0.71, 0.76, 0.81], "fedprox": [0.2, 0.21, 0.2]}
    )
    assert best_methods(close).startswith(
        "Which method has the best average accuracy is undecided: the 95% intervals of fedakd and "
        "fedavg overlap."
    )
    assert best_methods(replace(close, level=0.1)).startswith(
        "fedakd has the best average accuracy (76.0 %), over 3 seeds."
    )
    same = made_up({"fedavg": [0.70, 0.75], "fedakd": [0.70, 0.75]})
    assert best_methods(same).startswith(
        "Which method has the best average accuracy is undecided: the 95% intervals of fedavg and "
        "fedakd overlap."
    )
    single = made_up({"fedavg": [0.70, 0.71, 0.72], "fedakd": [math.nan, 0.9, math.nan]})
    assert best_methods(single) == (
        "fedavg harmed nobody over 3 seeds. fedakd (1 of 3 seeds) is left out, since not all seeds "
        "have a value."
    )


def test_harm_is_judged_alike_and_so_is_another_measure() -> None:
    harming = made_up({"fedavg": [0.55, 0.55, 0.62], "fedakd": [0.55, 0.62, 0.62]})
    assert best_methods(harming).endswith(
        "Which method harms the fewest clients is undecided: the 95% intervals of fedakd and "
        "fedavg overlap."
    )
    by_worst = best_methods(
        made_up({"fedavg": [0.70, 0.71, 0.72], "fedakd": [0.80, 0.81, 0.82]}, measure="worst")
    )
    assert (
        by_worst
        == "fedakd has the best accuracy of the worst client (71.0 %), over 3 seeds. fedavg and fedakd harmed nobody in 3 seeds."
    )
    assert (
        best_methods(made_up({"fedavg": [0.5, 0.5], "fedakd": [0.9, 0.9]}, measure="harmed"))
        == "fedakd harmed nobody in 2 seeds."
    )


def test_up_to_three_methods_are_named_and_changes_have_a_sign() -> None:
    def harmless(count: int) -> str:
        return best_methods(made_up({f"m{k}": [0.8] for k in range(count)}, measure="harmed"))

    assert harmless(1) == "m0 harmed nobody in this one run." and harmless(3).startswith(
        "m0, m1 and m2 harmed nobody in this one run per method"
    )
    assert harmless(4).startswith("m0, m1, m2 and 1 more harmed") and harmless(5).startswith(
        "m0, m1, m2 and 2 more harmed"
    )
    change = best_methods(made_up({"fedavg": [0.7], "fedakd": [0.8]}, measure="change"))
    assert change.startswith(
        "fedakd has the best average change in accuracy (+20.0 points) in this one run per method."
    )
    tied = best_methods(made_up({"fedavg": [0.8], "fedakd": [0.8]}, measure="std"))
    assert tied.startswith(
        "fedavg and fedakd have the lowest standard deviation of accuracy over clients (10.0 %)"
    )
    assert best_methods(made_up({"fedavg": [0.8]})) == "fedavg harmed nobody in this one run.", (
        "one method is not the best of several"
    )
    assert best_methods(made_up({"standalone": [0.8]})) == ""


def test_every_partition_has_a_verdict_of_its_own() -> None:
    first, second = (
        made_up({"fedavg": [0.7], "fedakd": [0.8]}),
        made_up({"fedavg": [0.9], "fedakd": [0.8]}, partition="sharded"),
    )
    both = best_methods(Comparison([*first.entries, *second.entries], "fedavg"))
    assert re.match(
        r"On iid: fedakd has the best average.*\nOn sharded: fedavg has the best average", both
    )


def test_of_several_methods_every_metric_has_its_average_its_worst_client_and_its_harm() -> None:
    found = metrics_of_several(made_up({"fedavg": [0.5], "fedakd": [0.8]}), "iid")
    assert len(found["header"]) == 4 and found["header"][0] == "method"
    assert [
        (row[0], *(re.sub("<[^>]*>|[*]", "", str(cell)) for cell in row[1:]))
        for row in found["rows"]
    ] == [
        ("fedavg", "50.0", "40.0", "100.0"),
        ("fedakd", "80.0", "70.0", "0.0"),
    ]


@pytest.mark.parametrize(("classes", "said"), [(2, False), (3, True), (4, True)])
def test_how_a_metric_of_two_classes_is_made_of_more_is_said(classes: int, said: bool) -> None:
    found = made_up({"fedavg": [0.5]}, "auroc")
    runs = [
        replace(one, run=replace(one.run, task=Task("classification", (3,), classes)))
        for one in found.entries
    ]
    text = formats.markdown(replace(found, entries=runs))
    assert (
        "auroc: the plain mean over the classes that occur in a client's test data, each against "
        "the rest" in text
    ) == said
    assert "the plain mean" not in formats.markdown(made_up({"fedavg": [0.5]}))


def test_numbers_are_written_in_the_unit_of_their_metric() -> None:
    assert [written(0.8534, find(name)) for name in ("accuracy", "auroc", "rmse", "loss")] == [
        "85.3 %",
        "85.3 %",
        "0.8534",
        "0.8534",
    ]
    assert [points(0.02, find(name)) for name in ("auroc", "mae")] == [
        "2.0 points",
        "0.0200",
    ] and written(math.nan, find("auroc")) == "–"


def pair(folder: Path, *statements: str, **evaluation: object) -> tuple[Path, Path]:
    """Runs of 4 clients that measured accuracy and, with the same numbers, AUROC; altered as the
    statements say.
    """
    copy = (
        "insert into measurements select round, client, model, phase, split, 'auroc', value - 0.1 "
        "from measurements where metric = 'accuracy'"
    )
    runs = [
        made_up_run(folder / method, method, level=level, evaluation=evaluation)
        for method, level in (("standalone", 0.55), ("fedavg", 0.6))
    ]
    for run in runs:
        change(run, copy, *statements)
    return runs[0], runs[1]


def test_a_page_about_auroc_has_all_metrics_and_names_clients_without_a_value(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    gone = "delete from measurements where metric = 'auroc' and client = '2'"
    _, run = pair(tmp_path, gone, metrics=["accuracy", "auroc"], main="auroc")
    (found,) = opened([run], details=True).entries
    assert found.run.main_metric == "auroc" and found.run.main.undefined == ["2"]
    assert {card.client for card in cards(found.run)} == {"0", "1", "3"}
    page = report([run], tmp_path / "r.html")[0].read_text()
    assert (
        "Auroc is undefined for client 2: its test data have one class; averages are over the "
        "other 3." in page
    )
    assert "In this one run" in page and "average AUROC" in page
    table = page[page.index("All metrics") :]
    average = np.mean(list(Run(run).final("auroc").values()))
    assert re.search(
        rf'<th scope="row">AUROC in % .3 of 4 clients.</th><td>{100 * average:.1f}</td>', table
    )
    assert re.search(r'<th scope="row">2</th><td>–</td><td>\d', table), (
        "client by client, auroc and accuracy"
    )
    assert not recwarn.list


def test_a_client_without_a_value_in_one_of_two_runs_counts_in_neither(tmp_path: Path) -> None:
    alone, run = pair(tmp_path, metrics=["accuracy", "auroc"], main="auroc")
    change(run, "delete from measurements where metric = 'auroc' and client = '2'")
    both = opened([alone, run], details=True)
    assert all(one.run.main.values.keys() == {"0", "1", "3"} for one in both.entries)
    (single,) = opened([run]).entries
    assert single.reference is not None and single.reference.keys() == {"0", "1", "3"}
    first = both.entries[0]
    assert first.run.details is not None
    last = first.run.details.history.mean[-1]
    assert last == pytest.approx(first.aggregates["average"]), "figures leave them out, too"


@pytest.mark.thorough
def test_a_diverged_client_is_named_and_the_average_is_not_that_of_the_others(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    _, run = pair(tmp_path, metrics=["accuracy", "auroc"], main="auroc")
    change(
        run,
        "update measurements set value = null where metric = 'auroc' and client = '2' and round > "
        "1",
    )
    page = report([run], tmp_path / "r.html")[0].read_text()
    assert "Auroc of client 2 is not a number: the outputs of the model are not finite." in page
    (found,) = opened([run], details=True).entries
    assert math.isnan(found.aggregates["average"])
    assert math.isnan(summarise(read_result(Run(run)))["average"])
    assert found.run.details is not None
    assert np.isnan(found.run.details.history.mean).tolist() == [False, True, True]
    broken = next(card for card in cards(found.run) if card.client == "2")
    assert broken.gain is None and broken.verdict == "" and '<tr class="" data-client="2">' in page
    change(run, "update measurements set value = null where metric = 'auroc'")
    assert report([run], tmp_path / "r.html")
    assert report([tmp_path / "standalone", run], tmp_path / "r.html")
    assert not recwarn.list


def test_without_a_reference_for_this_metric_the_page_says_so(tmp_path: Path) -> None:
    _, run = pair(tmp_path / "other", metrics=["accuracy", "auroc"], main="auroc")
    run = run.rename(tmp_path / "fedavg")
    alone = made_up_run(tmp_path / "standalone", "standalone")
    assert "No run of training alone is known" in report([run], tmp_path / "r.html")[0].read_text()
    notes = summarise(read_result(Run(run), Run(alone)))["notes"]
    assert any("has no auroc of these clients" in note for note in notes)


@pytest.mark.thorough
def test_the_page_of_a_comparison_uses_what_it_was_asked(tmp_path: Path) -> None:
    folders = {
        (method, seed): made_up_run(
            tmp_path / "runs" / f"{method}-{seed}", method, seed=seed, level=level
        )
        for method, level in (("standalone", 0.55), ("fedavg", 0.6), ("fedprox", 0.7))
        for seed in range(5)
    }
    entries = opened(list(folders.values())).entries
    failure = Failure("fedakd", "dirichlet:0.5", 3, "the oven is on fire")
    formats.save(Comparison(entries, "fedprox", [failure], tmp_path, level=0.5, measure="worst"))
    page = report([tmp_path], tmp_path / "r.html")[0].read_text()
    assert (
        "†: differs from fedprox" in page
        and "<dt>baseline of the tests</dt><dd>fedprox</dd>" in page
    )
    assert "50% interval over 5 seeds" in page and "rank: by worst client" in page
    assert (
        "1 of 16 runs failed: fedakd, partition dirichlet:0.5, seed 3: the oven is on fire" in page
    )
    assert "accuracy of the worst client" in re.search(r'class="headline">([^<]*)', page).group(1)  # type: ignore[union-attr]
    saved = json.loads((tmp_path / "comparison.json").read_text())
    assert (saved["baseline"], saved["level"], saved["measure"], saved["failures"][0]["seed"]) == (
        "fedprox",
        0.5,
        "worst",
        3,
    )


def test_a_comparison_of_one_run_names_what_failed(tmp_path: Path) -> None:
    entries = opened([made_up_run(tmp_path / "runs" / "standalone", "standalone")]).entries
    formats.save(
        Comparison(entries, "fedavg", [Failure("fedavg", "iid", 0, "no patience left")], tmp_path)
    )
    page = report([tmp_path], tmp_path / "r.html")[0].read_text()
    assert "1 of 2 runs failed: fedavg, partition iid, seed 0: no patience left" in page


@pytest.mark.parametrize(
    ("clients", "name"), [(3, "iid"), (["north", "south"], "one client per site")]
)
def test_a_run_that_failed_names_the_partition_of_the_others(
    clients: int | list[str], name: str, tmp_path: Path
) -> None:
    run = made_up_run(tmp_path / "runs" / "standalone", "standalone", clients)
    failures = [Failure("fedavg", partition, 0, "fire") for partition in ("auto", "auto, lr=0.1")]
    formats.save(Comparison(opened([run]).entries, "fedavg", failures, tmp_path))
    page = report([tmp_path], tmp_path / "r.html")[0].read_text()
    assert f"fedavg, partition {name}, seed 0: fire" in page
    partitions = [failure.partition for failure in opened([tmp_path]).failures]
    assert [text.partition(", ")[2] for text in partitions] == ["", "lr=0.1"]
    assert not any("auto" in text for text in partitions)


def test_points_beyond_the_line_are_those_that_gain() -> None:
    alone, together = np.array([1.0, 2.0, 3.0, math.nan]), np.array([0.5, 1.5, 4.0, 1.0])
    for metric, expected in (
        ("rmse", ["gains (2)", "loses (1)"]),
        ("auroc", ["gains (1)", "loses (2)"]),
    ):
        axes = figures.alone_against_together(alone, together, find(metric)).axes[0]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == expected


def test_the_main_metric_decides_the_best_round(tmp_path: Path) -> None:
    _, run = pair(
        tmp_path,
        "update measurements set value = 10 - round where metric = 'auroc'",
        metrics=["accuracy", "auroc"],
    )
    result = read_result(Run(run))
    assert summarise(result)["best round"] == 3, "accuracy rises"
    assert summarise(result, metric="auroc")["best round"] == 1
    loss = made_up_run(tmp_path / "loss", evaluation={"main": "loss"})
    change(loss, "update measurements set metric = 'loss'")
    found = summarise(read_result(Run(loss)))
    assert (
        found["best round"] == 1
        and found["worst"] == max(Run(loss).final().values())
        and found["metric"] == "loss"
    )


def test_points_of_a_calibration_curve_are_as_large_as_their_share_of_samples() -> None:
    draw = np.random.default_rng(0)
    score = draw.random((3000, 2))
    labels = draw.integers(0, 2, 3000)
    table = score_histograms.counted(score / score.sum(1, keepdims=True), labels)
    few = score_histograms.counted(np.array([[0.9, 0.1]] * 40), np.zeros(40, int))
    (axes,) = calibration({"north": table, "south": few}, 1).axes
    north, south = (collection.get_sizes() for collection in axes.collections)
    by_tenth = np.histogram(score[:, 1] / score.sum(1), np.arange(11) / 10)[0]
    assert sorted(north) == pytest.approx(sorted(6 + 60 * by_tenth[by_tenth > 0] / by_tenth.max()))
    assert south == pytest.approx([6 + 60 * 40 / by_tenth.max()])


def test_the_headline_compares_with_training_alone_and_ranks_it_nowhere() -> None:
    below = best_methods(made_up({"standalone": [0.9], "fedavg": [0.7], "fedakd": [0.8]}))
    assert below.startswith(
        "fedakd has the best average accuracy (80.0 %), worse than training alone (90.0"
    )
    one = best_methods(made_up({"standalone": [0.6], "fedavg": [0.7]}))
    assert one.startswith(
        "fedavg has 70.0 % as average accuracy, better than training alone (60.0 %)"
    )
    close = made_up({"standalone": [0.70, 0.72, 0.74], "fedavg": [0.71, 0.72, 0.75]})
    assert "not clearly different from training alone" in best_methods(close)


def test_only_a_method_that_differs_from_all_others_is_clearly_best() -> None:
    seeds = [0.70, 0.71, 0.72, 0.73, 0.74]
    better = [value + 0.1 + 0.001 * k for k, value in enumerate(seeds)]
    clear = made_up({"fedavg": seeds, "fedprox": seeds[::-1], "fedakd": better})
    (partition,) = clear.partitions
    assert clear.clearly_best(partition, "average") == "fedakd"
    rival = [value + 0.002 * (-1) ** k for k, value in enumerate(better)]
    close = made_up({"fedavg": seeds, "fedprox": rival, "fedakd": better})
    assert close.clearly_best(partition, "average") == ""
    few = made_up({"fedavg": seeds[:2], "fedakd": better[:2]})
    assert few.clearly_best(partition, "average") == "", "two seeds have no test"
