"""The figures of a report, their alternative texts, and the text of the page around them."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.comparison import Comparison
from equipoise.comparison import opened as read_runs
from equipoise.comparison.entries import Entry
from equipoise.comparison.table import Failure
from equipoise.report import pictures
from equipoise.report.cards import Card, cards
from equipoise.report.page import page_of
from equipoise.runs import Run
from tests.helpers.stores import change, made_up_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four clients, alone and together, and of values in place of classes."""
    folder = tmp_path_factory.mktemp("pictures")
    for method, level in (("standalone", 0.55), ("fedavg", 0.6), ("fedprox", 0.7)):
        made_up_run(folder / method, method, level=level)
        made_up_run(folder / "other" / method, method, level=level, seed=1)
        made_up_run(folder / "errors" / method, method, level=level, regression=True)
    made_up_run(folder / "single" / "fedavg", clients=1, rounds=1)
    return folder


def opened(runs: list[Path]) -> Comparison:
    return read_runs(runs, details=True)


def figures_of(entry: Entry) -> dict[str, pictures.Picture]:
    return pictures.of_run(entry.label, entry.run, cards(entry.run))


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def test_the_figures_of_a_run_say_what_they_show(folder: Path) -> None:
    (entry,) = opened([folder / "fedavg"]).entries
    run, alone = Run(folder / "fedavg"), Run(folder / "standalone")
    found = figures_of(entry)
    assert list(found) == ["clients", "curves", "plane", "heatmap", "weights"]
    together, before = run.final(), alone.final()
    better = sum(together[client] > before[client] for client in together)
    assert found["clients"].text.startswith(
        "From what each client reaches alone (ring) to what it has together, most harmed first"
    )
    assert f": {better} of 4 gain. Where the interval holds the ring" in found["clients"].text
    gains = sorted(together, key=lambda client: together[client] - before[client])
    assert [text.get_text() for text in found["clients"].draw().axes[0].get_yticklabels()] == gains
    by_round = [
        np.mean([row["value"] for row in run.table(phase="received", split="test", round=n)])
        for n in (1, 3)
    ]
    ends = (
        f"from {percent(by_round[0])} to {percent(by_round[1])}; training alone ends at "
        f"{percent(np.mean(list(before.values())))}."
    )
    assert found["curves"].text == f"The mean over clients goes {ends}"
    assert [line.get_label() for line in found["curves"].draw().axes[0].lines][-2:] == [
        "mean",
        "mean of training alone",
    ]
    for name, values in (("fedavg", together), ("training alone", before)):
        level, spread = np.mean(list(values.values())), np.std(list(values.values()))
        assert (
            f" {name}: average {percent(level)}, standard deviation {100 * spread:.1f} points."
            in found["plane"].text
        )
    assert found["plane"].text.startswith("Up is better on average, left is more even.")
    assert found["plane"].text.endswith("The line is the way there, round by round.")
    assert {text.get_text() for text in found["plane"].draw().axes[0].texts} >= {
        "fedavg",
        "training alone",
        "round 1",
    }
    assert (
        f"from {percent(min(together.values()))} to {percent(max(together.values()))}."
        in found["heatmap"].text
    )
    assert found["weights"].text.endswith("on average the same for all.")


def test_errors_are_better_below(folder: Path) -> None:
    (entry,) = opened([folder / "errors" / "fedavg"]).entries
    run, alone = (
        Run(folder / "errors" / "fedavg").final(),
        Run(folder / "errors" / "standalone").final(),
    )
    found = figures_of(entry)
    better = sum(run[client] < alone[client] for client in run)
    assert found["clients"].text.endswith(f": {better} of 4 gain.") and found[
        "plane"
    ].text.startswith("Down is better on average")
    several = opened([folder / "errors" / method for method in ("standalone", "fedavg")])
    (partition,) = several.partitions
    assert pictures.of_comparison(several, partition)["plane"].text.startswith(
        "Down is better on average"
    )


@pytest.mark.parametrize(("count", "many"), [(30, False), (31, True)])
def test_of_many_clients_the_text_speaks_of_points(count: int, many: bool, folder: Path) -> None:
    (entry,) = opened([folder / "fedavg"]).entries
    found = [
        Card(str(k), 1, 0.6, 0.5 + 0.1 * (k == 0), 0.1 * (k > 0), -0.1, 0.3) for k in range(count)
    ]
    without = [Card("x", 1, 0.5)]
    text = pictures.of_run(entry.label, entry.run, [*found, *without])["clients"].text
    points = (
        f"One point per client; above the line a client gains from joining. {count - 1} of {count} "
        "clients lie above it."
    )
    assert text.endswith("Not shown, since the gain is not known: 1 client.")
    assert text.startswith(points) == many and (f"{count - 1} of {count} gain." in text) == (
        not many
    )


def test_a_single_client_that_was_measured_once_has_no_plane_and_no_way(folder: Path) -> None:
    (entry,) = opened([folder / "single" / "fedavg"]).entries
    found = figures_of(entry)
    assert (
        list(found) == ["curves", "heatmap", "weights"]
        and "training alone" not in found["curves"].text
    )
    (alone,) = opened([folder / "standalone"]).entries
    own = figures_of(alone)
    assert (
        list(own) == ["curves", "plane", "heatmap"]
        and "training alone" not in own["plane"].text + own["curves"].text
    )


def test_two_clients_are_enough_for_a_plane(tmp_path: Path) -> None:
    made_up_run(tmp_path / "pair", clients=2, rounds=1)
    (entry,) = opened([tmp_path / "pair"]).entries
    assert "plane" in figures_of(entry) and "the way there" not in figures_of(entry)["plane"].text


def test_the_lightest_and_the_heaviest_client_are_named(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    change(
        run,
        *(
            f"update weights set share = {share} where client = '{client}'"
            for client, share in enumerate((0.3, 0.1, 0.2, 0.4))
        ),
    )
    (entry,) = opened([run]).entries
    found = pictures.of_method(entry.run)
    assert list(found) == ["heatmap", "weights"]
    assert found["weights"].text.endswith("on average from 10.0 % (client 1) to 40.0 % (client 3).")


def test_the_caption_of_the_learning_curve_ends_at_the_number_of_the_table(tmp_path: Path) -> None:
    experiment = eq.Experiment(
        data={"name": "digits", "clients": 3},
        method={"name": "fedavg", "finish": "poise"},
        rounds=2,
        training={"steps": 2},
        workers=0,
    )
    eq.run(experiment, tmp_path / "run")
    comparison = opened([tmp_path / "run"])
    (entry,) = comparison.entries
    average = percent(entry.aggregates["average"])
    found = figures_of(entry)
    assert f"to {average} after the final phase" in found["curves"].text
    lowest = percent(min(entry.run.main.values.values()))
    assert f"from {lowest} to " in found["heatmap"].text


def test_the_figures_of_a_comparison_are_over_seeds(folder: Path) -> None:
    runs = [
        folder / place / method
        for place in ("", "other")
        for method in ("standalone", "fedavg", "fedprox")
    ]
    both = opened(runs)
    (partition,) = both.partitions
    found = pictures.of_comparison(both, partition)
    assert list(found) == ["gains", "curves", "plane"]
    values = {
        (method, seed): both.entry(method, partition, seed).run.main.values
        for method in both.methods
        for seed in both.seeds
    }  # type: ignore[union-attr]
    for method in ("fedavg", "fedprox"):
        lose = sum(
            value < values["standalone", seed][client]
            for seed in both.seeds
            for client, value in values[method, seed].items()
        )
        assert f"{method}: {lose} of 8 lose." in found["gains"].text
    assert "standalone" not in found["gains"].text and found["gains"].text.startswith(
        "One point per client and seed."
    )
    for method in both.methods:
        levels = [np.mean(list(values[method, seed].values())) for seed in both.seeds]
        spreads = [np.std(list(values[method, seed].values())) for seed in both.seeds]
        assert f"{method} ends at {percent(np.mean(levels))}." in found["curves"].text
        assert (
            f"{method}: average {percent(np.mean(levels))}, standard deviation "
            f"{100 * np.mean(spreads):.1f} points." in found["plane"].text
        )
    assert found["curves"].text.startswith("Mean over clients; bands span the seeds.")
    one = replace(
        both, entries=[entry for entry in both.entries if entry.run.condition[1] == both.seeds[0]]
    )
    assert pictures.of_comparison(one, partition)["curves"].text.startswith("Mean over clients. ")
    assert (
        len(found["gains"].draw().axes[0].get_yticklabels()) == 2
        and len(found["curves"].draw().axes[0].lines) == 3
    )
    unknown = replace(
        both,
        entries=[replace(entry, run=entry.run.without_baseline()) for entry in both.entries],
    )
    assert list(pictures.of_comparison(unknown, partition)) == ["curves", "plane"]


def shown(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page without its pictures, which take their time."""
    monkeypatch.setattr(pictures, "embedded", lambda draw, name: "")
    return " ".join(page_of(comparison).split())


def tiles(page: str) -> dict[str, tuple[str, str]]:
    found = re.findall(
        r'class="name">([^<]*)</span> <span class="value">([^<]*)</span> <span '
        r'class="beside">([^<]*)<',
        page,
    )
    return {name: (value, beside) for name, value, beside in found}


def test_the_numbers_in_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = opened([folder / "fedavg"])
    (entry,) = comparison.entries
    together, alone = (
        np.array(list(Run(folder / method).final().values())) for method in ("fedavg", "standalone")
    )
    page = shown(comparison, monkeypatch)
    found = tiles(page)
    assert list(found) == [
        "average accuracy",
        "lowest of all clients",
        "standard deviation over clients",
        "average gain",
        "collaborative fairness",
    ]
    assert found["average accuracy"] == (
        percent(together.mean()),
        f"alone: {percent(alone.mean())}",
    )
    assert found["lowest of all clients"] == (
        percent(together.min()),
        f"alone: {percent(alone.min())}",
    )
    assert found["standard deviation over clients"] == (
        f"{100 * together.std():.1f} points",
        f"alone: {100 * alone.std():.1f} points",
    )
    change, harmed = (together - alone).mean(), (together < alone).mean()
    assert found["average gain"] == (
        f"{100 * change:+.1f} points",
        f"{100 * harmed:.0f} % of the clients lose",
    )
    assert found["collaborative fairness"] == (
        f"{entry.aggregates['cf']:.1f}",
        "CF, from -100 to 100",
    )
    assert (
        "To learn who gains" not in page and "not final" not in page and "runs failed" not in page
    )
    scores = replace(entry.run.main, majority=dict.fromkeys("0123", 0.25))
    run = entry.run.with_metrics({"accuracy": scores}, "accuracy")
    known = replace(comparison, entries=[replace(entry, run=run)])
    assert tiles(shown(known, monkeypatch))["majority class"][0] == "25.0 %"


def test_of_errors_the_highest_is_told_and_a_fall_is_a_gain(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tiles(shown(opened([folder / "errors" / "fedavg"]), monkeypatch))
    together, alone = (
        np.array(list(Run(folder / "errors" / method).final().values()))
        for method in ("fedavg", "standalone")
    )
    assert found["highest of all clients"] == (f"{together.max():.4f}", f"alone: {alone.max():.4f}")
    gain = (alone - together).mean()
    assert found["average gain"][0] == f"{'+' if gain > 0 else ''}{gain:.4f}"


def test_what_is_missing_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = opened([folder / "single" / "fedavg"])
    page = shown(comparison, monkeypatch)
    assert (
        "To learn who gains, run the method standalone" in page
        and "average gain" not in tiles(page)
        and tiles(page)["lowest of all clients"][1] == ""
    )
    assert "To learn who gains" not in shown(opened([folder / "standalone"]), monkeypatch)
    one, two = Failure("x", "iid", 1, "fire"), Failure("y", "iid", 2, "flood")
    assert "1 of 2 runs failed: x, partition iid, seed 1: fire" in shown(
        replace(comparison, failures=[one]), monkeypatch
    )
    assert "2 of 3 runs failed, the first: x, partition iid, seed 1: fire" in shown(
        replace(comparison, failures=[one, two]), monkeypatch
    )


def test_a_best_round_before_the_last_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_up_run(tmp_path / "run", rounds=2)
    assert "The best average" not in shown(opened([run]), monkeypatch)
    with sqlite3.connect(run / "run.db") as db:
        db.execute("update measurements set value = 0.96 where round = 1")
    db.close()
    assert (
        "The best average, 96.0 %, was that of round 1; it is known only by looking at test data."
        in shown(opened([run]), monkeypatch)
    )


def test_a_page_of_several_has_the_figures_of_each_method_under_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = opened([folder / method for method in ("standalone", "fedavg", "fedprox")])
    page = shown(both, monkeypatch)
    names = re.findall(r'<figure id="figure-([^"]*)"', page)
    assert names[:3] == ["gains", "curves", "plane"]
    assert names[3:] == [
        "heatmap-standalone",
        "heatmap-fedavg",
        "weights-fedavg",
        "heatmap-fedprox",
        "weights-fedprox",
    ]
    assert "All metrics" not in page, "there is one"
    assert (
        "2 methods and training alone on digits" in page
        and "Change against training alone by client (points; seed 0), most harmed first" in page
    )
    for method in both.methods:
        assert f"{method}, {both.partitions[0]}, seed 0: {folder / method}" in page
    body, foot = page[page.index('<table class="changes"') :].split("<tfoot>")[:2]
    assert sorted(re.findall(r'<th scope="row">([^<]*)</th>', body)) == [
        "0",
        "1",
        "2",
        "3",
    ] and foot.startswith('<tr><th scope="row">clients that lose<')


def test_figures_of_two_partitions_and_of_methods_that_begin_alike_are_told_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = opened([folder / method for method in ("fedavg", "fedprox")])
    alike = [
        replace(entry, label={"fedprox": "fedavg (mu=1)"}.get(entry.label, entry.label))
        for entry in both.entries
    ]
    there = [
        replace(
            e,
            run=replace(
                e.run,
                config={**e.run.config, "data": {**e.run.config["data"], "partition": "sharded"}},
            ),
        )
        for e in alike
    ]
    page = shown(replace(both, entries=[*alike, *there[:1]]), monkeypatch)
    figures, *details = re.split("<details> <summary>", page)
    shared = re.findall(r'<figure id="figure-([^"]*)"', figures)
    assert shared == ["gains-1", "curves-1", "plane-1", "gains-2", "curves-2", "plane-2"]
    owned = {}
    for part in details:
        for name in re.findall(r'<figure id="figure-([^"]*)"', part):
            owned[name] = part.split(":")[0]
    assert owned == {
        f"{what}-fedavg-{k}": "fedavg" for what in ("heatmap", "weights") for k in (1, 2)
    } | {f"{what}-fedavg--mu=1-1": "fedavg (mu=1)" for what in ("heatmap", "weights")}
    assert (
        page.count('<h2 id="methods-') == 2
        and "fedavg (mu=1), sharded" not in page
        and f"fedavg, sharded, seed 0: {folder / 'fedavg'}" in page
    )
    assert f"2 methods on {both.entries[0].run.data}" in page
