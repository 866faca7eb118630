"""What a report says: words, cards, figures, refusals.

The page itself is looked at in a browser elsewhere.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from equipoise.comparison.entries import open_runs
from equipoise.metrics.registry import find
from equipoise.report import report
from equipoise.report.cards import Card, cards, headline
from equipoise.runs import Run, read_result
from equipoise.storage.files import LOCK
from equipoise.storage.store import RunError, Store
from tests.helpers.stores import made_up_run


def pair(folder: Path, **settings: object) -> Path:
    made_up_run(folder / "standalone", "standalone", **{**settings, "level": 0.55})
    return made_up_run(folder / "fedavg", "fedavg", **settings)


def test_headlines_for_every_kind_of_outcome():
    def card(client: str, gain: float) -> Card:
        return Card(client, 10, 0.5 + gain, 0.5, gain)

    accuracy, rmse = find("accuracy"), find("rmse")
    assert (
        headline([card("a", 0.1), card("b", 0.2)], accuracy)
        == "In this one run all 2 clients gain."
    )
    assert (
        headline([card("a", 0.0), card("b", 0.2)], accuracy)
        == "In this one run 1 of 2 clients gains; nobody loses."
    )
    three = [card("a", -0.021), card("b", 0.2), card("c", 0.2)]
    assert (
        headline(three, accuracy)
        == "In this one run 2 of 3 clients gain; client a loses 2.1 points."
    )
    both = [card("a", -0.02), card("b", -0.3)]
    assert (
        headline(both, accuracy)
        == "In this one run 0 of 2 clients gain; 2 lose, client b most: 30.0 points."
    )
    assert (
        headline([card("a", -0.25), card("b", 0.2)], rmse)
        == "In this one run 1 of 2 clients gains; client a loses: its RMSE is 0.2500 higher than alone."
    )
    assert headline([card("a", 0.1)], accuracy) == "In this one run 1 of 1 client gains."
    wide, clear = Card("a", 9, 0.4, 0.5, -0.1, p=0.3), Card("b", 9, 0.9, 0.5, 0.4, p=0.001)
    assert headline([wide, clear], accuracy).endswith(
        "client a loses 10.0 points, which is not significant, given its finite test set."
    )
    assert headline([wide, card("c", 0.0)], accuracy).endswith(
        "this change is not significant, given a finite test set."
    )


def test_cards_hold_what_the_store_holds(tmp_path: Path):
    (entry,) = open_runs([pair(tmp_path, clients=5)], details=True)
    run, alone = Run(tmp_path / "fedavg"), Run(tmp_path / "standalone")
    found = {card.client: card for card in cards(entry.run)}
    for client, value in run.final().items():
        card = found[client]
        assert (card.value, card.alone, card.gain) == (
            value,
            alone.final()[client],
            pytest.approx(value - alone.final()[client]),
        )
        assert (
            card.low <= card.gain <= card.high
            and card.weight == pytest.approx(0.2)
            and card.rounds == 3
        )
    gains = [card.gain for card in cards(entry.run)]
    assert gains == sorted(gains)


def test_errors_have_gains_of_the_right_sign_and_no_interval(tmp_path: Path):
    (entry,) = open_runs([pair(tmp_path, regression=True)], details=True)
    run = Run(tmp_path / "fedavg")
    assert len(cards(entry.run)) == len(run.clients)
    for card in cards(entry.run):
        assert card.gain == pytest.approx(card.alone - card.value) and card.low is None


@pytest.mark.thorough
def test_one_model_on_one_test_set_is_what_each_client_has(tmp_path: Path):
    (entry,) = open_runs([pair(tmp_path, shared_test=200)], details=True)
    value = Run(tmp_path / "fedavg").final()["all"]
    assert entry.run.main.values == dict.fromkeys("0123", value)
    assert entry.run.details is not None
    assert entry.run.details.history.values[:, -1].tolist() == [value] * 4
    assert report([tmp_path / "fedavg"], tmp_path / "r.html")


def test_curves_and_weights_are_those_of_the_store(tmp_path: Path):
    run = Run(made_up_run(tmp_path / "run"))
    details = read_result(run, details=True).details
    assert details is not None
    history = details.history
    for row in run.table(split="test"):
        place = history.clients.index(row["client"]), history.rounds.index(row["round"])
        assert history.values[place] == row["value"]
    assert np.allclose(details.weights.values, 0.25)
    alone = Run(made_up_run(tmp_path / "alone", "standalone"))
    without = read_result(alone, details=True).details
    assert without is not None and without.weights.values.size == 0


def test_names_from_outside_are_text_and_not_markup(tmp_path: Path):
    evil = "<img src=x onerror=alert(1)>"
    clients = [evil, "$\\frac{$", "_b", "100 % {{ 7 * 7 }}"]
    path, *drawn = report(
        [made_up_run(tmp_path / "run", clients=clients)], tmp_path / "r.html", kinds=["png"]
    )
    page = path.read_text()
    assert evil not in page and "&lt;img src=x" in page and "{{ 7 * 7 }}" in page
    pictures = re.findall(r'<svg [^>]*class="chart".*?</svg>', page, re.S)
    assert drawn and all(evil not in picture for picture in pictures)
    named = [picture for picture in pictures if "&lt;img src=x" in picture]
    assert len(named) == 3, (
        "the learning curves, the heat map and the legend of the weights name the clients"
    )
    assert all("$\\frac{$" in picture and "_b" in picture for picture in named), (
        "a formula or an underscore is a name like any other"
    )


@pytest.mark.thorough
def test_figures_are_written_for_a_paper(tmp_path: Path):
    run = pair(tmp_path)
    files = report([run], tmp_path / "out" / "r.html", kinds=["png", "pdf"], names=["plane"])
    assert [path.name for path in files] == ["r.html", "r-plane.png", "r-plane.pdf"]
    assert files[1].read_bytes()[:4] == b"\x89PNG" and files[2].read_bytes()[:5] == b"%PDF-"
    every = report([run], tmp_path / "r.html", kinds=["pdf"])
    assert {path.stem.removeprefix("r-") for path in every[1:]} == {
        "clients",
        "curves",
        "plane",
        "heatmap",
        "weights",
    }


def test_the_same_run_gives_the_same_page(tmp_path: Path):
    run = pair(tmp_path)
    first, second = (
        report([run], tmp_path / name)[0].read_bytes() for name in ("a.html", "b.html")
    )
    assert first == second


@pytest.mark.thorough
def test_a_thousand_clients_stay_small(tmp_path: Path):
    page = report([pair(tmp_path, clients=1000, rounds=2)], tmp_path / "r.html")[0]
    assert page.stat().st_size < 1_500_000


def test_several_runs_make_a_comparison(tmp_path: Path):
    pair(tmp_path)
    made_up_run(tmp_path / "fedprox", "fedprox", level=0.7)
    page = report(
        [tmp_path / name for name in ("standalone", "fedavg", "fedprox")], tmp_path / "r.html"
    )[0].read_text()
    assert "<h1>2 methods and training alone on digits</h1>" in page and re.search(
        r'class="headline">fedprox has the best average', page
    )


def test_a_run_that_is_not_finished_says_so(tmp_path: Path):
    run = made_up_run(tmp_path / "run", finished=False)
    assert "the run was stopped" in report([run], tmp_path / "r.html")[0].read_text()
    writing = Store(run, writing=True)
    try:
        assert (
            "the run is in progress (round 2 of 3)"
            in report([run], tmp_path / "r.html")[0].read_text()
        )
        with pytest.raises(RunError, match="in progress"):
            report([run, made_up_run(tmp_path / "other", "fedprox")], tmp_path / "r.html")
    finally:
        writing.close()
    assert (run / LOCK).exists()
    with pytest.raises(RunError, match=r"stopped after round 2 of 3.*equipoise resume"):
        report([run, tmp_path / "other"], tmp_path / "r.html")


def test_bad_input_gets_a_sentence(tmp_path: Path):
    run, out = made_up_run(tmp_path / "run"), tmp_path / "r.html"
    (tmp_path / "empty").mkdir()
    (tmp_path / "no-db").mkdir()
    (tmp_path / "no-db" / "x").touch()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "run.db").touch()
    made_up_run(tmp_path / "first-rounds", finished=False, rounds=1)
    other = made_up_run(tmp_path / "other", "fedprox", data={"name": "mnist"})
    dealt = made_up_run(tmp_path / "dealt", "fedprox", fingerprint="other")
    twin = made_up_run(tmp_path / "twin")
    alone = made_up_run(tmp_path / "elsewhere" / "standalone", "standalone", rounds=5)
    newer = made_up_run(tmp_path / "newer")
    db = sqlite3.connect(newer / "run.db")
    db.execute("update meta set value = '99' where key = 'format'")
    db.commit()
    db.close()
    for runs, against, sentence in [
        ([tmp_path / "rum"], None, "no folder .*rum; did you mean .*run"),
        ([tmp_path / "empty"], None, "is empty: there is no run in it"),
        ([tmp_path / "no-db"], None, "is not a run: it has no run.db"),
        ([tmp_path], None, "is not a run but holds .*name those you want"),
        ([tmp_path / "cut"], None, "cannot be read"),
        ([tmp_path / "first-rounds"], None, "stopped after round 0 of 1"),
        ([newer], None, "newer version .*upgrade equipoise"),
        ([run, other], None, "data.name is 'digits' in one and 'mnist' in the other"),
        ([run, dealt], None, "same settings, other data"),
        ([run, twin], None, "are the same experiment; name one"),
        ([run], twin, "is not a run of standalone"),
        ([run], alone, "their data, seed, rounds, training or model differ"),
    ]:
        with pytest.raises(RunError, match=sentence):
            report(runs, out, against)
    with pytest.raises(ValueError, match="did you mean 'plane'"):
        report([run], out, names=["plan"])
    with pytest.raises(RunError, match="cannot write the report"):
        report([run], run / "run.db" / "r.html")
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "is damaged"), ("[]", "is damaged"), (json.dumps({"format": 99, "entries": []}), "newer version"), (json.dumps({"format": 1, "entries": []}), "every run of the comparison failed")],
)  # fmt: skip
def test_a_bad_comparison_gets_a_sentence(text: str, sentence: str, tmp_path: Path):
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(RunError, match=sentence):
        report([tmp_path], tmp_path / "r.html")


@pytest.mark.thorough
def test_one_method_against_training_alone_has_the_page_of_its_run(tmp_path: Path):
    run = pair(tmp_path)
    single = report([run], tmp_path / "run.html")[0].read_text()
    both = report([tmp_path / "standalone", run], tmp_path / "both.html")[0].read_text()
    assert "Report card of every client" in both and "<h1>fedavg on digits</h1>" in both
    assert both == single


def test_notes_stand_behind_the_figures_and_each_once(tmp_path: Path):
    pair(tmp_path)
    made_up_run(tmp_path / "fedprox", "fedprox", level=0.7)
    runs = [tmp_path / name for name in ("standalone", "fedavg", "fedprox")]
    page = report(runs, tmp_path / "r.html")[0].read_text()
    assert page.index('id="notes"') > page.rindex("</figure>")
    notes = re.findall(r"<li>([^<]*)</li>", page[page.index('id="notes"') :])
    assert len(notes) == len(set(notes)) and sum("McNemar" in note for note in notes) == 1
    assert page.count("McNemar") == 1
    assert "<strong>" not in page, "one seed shows no significant difference"


def test_falling_validation_values_are_followed_by_advice(tmp_path: Path):
    run = made_up_run(tmp_path / "run", rounds=12)
    with sqlite3.connect(run / "run.db") as db:
        for number in range(1, 13):
            value = 0.9 - 0.02 * abs(number - 5)
            db.execute(
                "update measurements set value = ? where split = 'validation' and round = ?",
                (value, number),
            )
    db.close()
    page = report([run], tmp_path / "r.html")[0].read_text()
    assert "was best around round 5 (90.0 %) and ended at 76.0 %" in page and "rounds=5" in page


@pytest.mark.parametrize(("clients", "name"), [(["0", "1"], "iid"), (["north", "1"], "natural")])
def test_a_partition_chosen_by_rule_has_the_name_of_what_was_chosen(
    clients: list[str], name: str, tmp_path: Path
):
    run = made_up_run(tmp_path / "run", clients=clients, data={"partition": "auto"})
    result = read_result(Run(run))
    assert result.partition == name and result.condition == (name, 0)
