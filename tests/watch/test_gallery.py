"""The gallery of a folder: its members, their order and status, and their pages; without a server."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from equipoise.comparison import Comparison, formats, opened
from equipoise.comparison.table import Failure
from equipoise.runs import Run, read_result
from equipoise.storage.store import RoundRecord, RunError, Store
from equipoise.watch.gallery import Gallery, Limits
from equipoise.watch.items import Item, with_differences
from equipoise.watch.pages import FRESH, comparison_page, open_inside, run_page
from equipoise.watch.progress import progress_of
from tests.helpers.stores import change, made_up_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of classes and of values, a stopped one, a comparison and one that is not finished."""
    folder = tmp_path_factory.mktemp("gallery").resolve()
    made_up_run(folder / "a", clients=3)
    made_up_run(folder / "b", regression=True, seed=4)
    made_up_run(folder / "c", "fedprox", finished=False)
    change(folder / "c", "insert into rejected values (1, 0, 1, '0', 'x')")
    for name in ("both", "half"):
        for method in ("standalone", "fedavg"):
            made_up_run(folder / name / "runs" / method, method)
    runs = [folder / "both" / "runs" / method for method in ("standalone", "fedavg")]
    failures = [Failure("x", "iid", 0, "no")]
    formats.save(Comparison(opened(runs).entries, "fedavg", failures, folder / "both"))
    newest_last = ("b", "a", "c", "both", "half/runs/standalone", "half/runs/fedavg")
    for second, name in enumerate(newest_last, start=1):
        for file in ("run.db", "comparison.json"):
            if (folder / name / file).exists():
                os.utime(folder / name / file, (second, second))
        (folder / name / "run.db-wal").unlink(missing_ok=True)
    return folder


def members(found: Gallery) -> dict[str, str]:
    """Return name -> address, in the order of the page."""
    links = re.findall(r'<a href="([0-9a-f]{16})/">([^<]*)</a>', found.page.html())
    return {name: address for address, name in links}


@pytest.fixture
def shown(folder: Path) -> Iterator[Gallery]:
    yield Gallery(folder)
    for stray in folder.glob("**/run.db-*"):
        stray.unlink()


def test_the_newest_member_comes_first(shown: Gallery) -> None:
    names = ["half/runs/fedavg", "half/runs/standalone", "both", "c", "a", "b"]
    assert list(members(shown)) == names


def test_each_member_has_its_numbers_and_its_status(shown: Gallery, folder: Path) -> None:
    page = " ".join(shown.page.html().replace("\u00a0", " ").split())
    values = list(Run(folder / "a").final().values())
    average, lowest = 100 * sum(values) / 3, 100 * min(values)
    assert f"accuracy: average {average:.1f} %, lowest {lowest:.1f} %" in page
    errors = list(Run(folder / "b").final().values())
    assert f"RMSE: average {sum(errors) / 4:.4f}, highest {max(errors):.4f}" in page
    assert "digits, 3 clients, seed 0; finished after 3 rounds" in page
    assert "stopped after round 2 of 3" in page and "1 client failed" in page
    assert "comparison of 2 methods on digits, 1 seed; 1 run failed" in page
    assert shown.page.state().status == "finished"


def test_a_run_in_progress_is_counted(shown: Gallery) -> None:
    writing = Store(shown.root / "c", writing=True)
    try:
        state = shown.page.state()
        assert state.status == "running" and "1 run in progress" in state.words
    finally:
        writing.close()


def test_the_card_of_a_run_in_progress_follows_its_rounds(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", clients=["a"], rounds=4, finished=False)
    found = Gallery(tmp_path.resolve())
    writing = Store(run, writing=True)
    try:
        (item,) = found.items()
        assert item.status == "running" and "round 3 of 4" in item.about
        record = RoundRecord(4, 0, ["a"], ["a"])
        record.measurements = [("a", "global", "received", "test", "accuracy", 0.125)]
        writing.commit(record, 2)
        time.sleep(2 * FRESH)
        (item,) = found.items()
        assert "round 4 of 4" in item.about and "12.5" in item.headline
        assert item.curve.means[-1] == 0.125
    finally:
        writing.close()
    time.sleep(2 * FRESH)
    (item,) = found.items()
    assert item.status == "stopped", "its process ended without a change of its files"


def test_a_run_that_could_not_be_read_for_a_moment_gets_its_card(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    hidden = (run / "experiment.yaml").rename(run / "hidden")
    found = Gallery(tmp_path.resolve())
    (item,) = found.items()
    assert item.status == "damaged" and "experiment.yaml" in item.headline
    hidden.rename(run / "experiment.yaml")
    time.sleep(2 * FRESH)
    (item,) = found.items()
    assert item.status == "finished"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"regression": True},
        {"shared_test": 50},
        {"finished": False},
        {"method": "standalone"},
        {"clients": ["a"], "rounds": 1},
    ],
    ids=str,
)
def test_a_card_has_the_numbers_of_the_result(settings: dict[str, Any], tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", **settings)
    result = read_result(Run(run)).main
    (item,) = Gallery(tmp_path.resolve()).items()
    assert item.curve == result.curve and item.metric == result.metric
    sign = -1 if result.metric.lower_is_better else 1
    assert item.score == sign * result.aggregates["average"]


def test_a_member_is_read_again_when_its_files_change(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", clients=["a"], rounds=1)
    change(run, "update measurements set value = 0.25")
    stamp = (run / "run.db").stat()
    found = Gallery(tmp_path)
    assert "average 25.0" in found.page.html()
    change(run, "update measurements set value = 0.75")
    (run / "run.db-wal").unlink(missing_ok=True)
    os.utime(run / "run.db", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    time.sleep(2 * FRESH)
    assert "average 25.0" in found.page.html(), "an unchanged finished run is not read again"
    os.utime(run / "run.db")
    time.sleep(2 * FRESH)
    assert "average 75.0" in found.page.html()


def test_very_many_members_are_bounded(folder: Path) -> None:
    bounded = Gallery(folder, Limits(folders=5, shown=2))
    assert list(members(bounded)) == ["both", "c"]
    page = bounded.page.html()
    assert "4 runs and comparisons" in page and "The newest 2 are shown." in page


def test_an_address_leads_to_the_page_of_a_member_or_nowhere(shown: Gallery) -> None:
    addresses = members(shown)
    page = shown.member(addresses["both"])
    assert page is not None and page.state().words == "a finished comparison"
    assert shown.member(addresses["both"]) is page
    assert shown.member("0" * 16) is None and shown.member("../both") is None


def test_the_folder_of_a_comparison_is_a_gallery_of_it_and_its_runs(folder: Path) -> None:
    assert set(members(Gallery(folder / "both"))) == {"both", "runs/fedavg", "runs/standalone"}


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    page = Gallery(tmp_path).page.html()
    assert "0 runs and comparisons" in page and "equipoise run --out" in page
    made_up_run(tmp_path / "run")
    assert "1 run or comparison" in Gallery(tmp_path).page.html()


def test_a_comparison_that_is_gone_has_a_page_that_says_so(tmp_path: Path) -> None:
    page = comparison_page(tmp_path / "gone", tmp_path, "../")
    assert page.state().status == "damaged"
    assert "FileNotFoundError" in page.html() and 'href="../"' in page.html()


def test_a_damaged_comparison_and_one_with_runs_elsewhere_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "comparison.json"
    for text in ("{", "[]", '{"entries": [1]}'):
        file.write_text(text)
        with pytest.raises(RunError, match="comparison.json cannot be read: it is damaged"):
            open_inside(tmp_path, tmp_path)
    saved = json.loads((folder / "both" / "comparison.json").read_text())
    saved["entries"][0] |= {"run": None, "alone": "../x"}
    file.write_text(json.dumps(saved))
    with pytest.raises(RunError, match="which is not inside"):
        open_inside(tmp_path, tmp_path)
    assert len(open_inside(folder / "both", folder).entries) == 2


def test_a_folder_without_a_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    page = run_page(tmp_path / "nothing", "../")
    assert page.state().status == "damaged" and "nothing" in page.html()


def test_eight_clients_that_failed_are_named(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    change(run, *(f"insert into rejected values (1, 0, 1, 'c{k}', 'x')" for k in range(8)))
    failed = progress_of(Run(run)).failed
    assert [line.split()[1] for line in failed] == [f"c{k}" for k in range(8)]
    change(run, "insert into rejected values (2, 0, 1, 'd', 'x')")
    latest, *_, rest = progress_of(Run(run)).failed
    assert "client d" in latest and "round 2" in latest and rest == "and 1 more clients"


def card(page: str, name: str) -> str:
    """The card of a member."""
    (found,) = (part for part in page.split("<li class=")[1:] if f'data-name="{name}"' in part)
    return found


def test_a_card_has_method_differing_settings_start_and_curve(tmp_path: Path) -> None:
    made_up_run(tmp_path / "short", "fedprox", rounds=2)
    made_up_run(tmp_path / "long", "fedprox", rounds=5)
    page = Gallery(tmp_path.resolve()).page.html()
    for name, rounds in (("short", 2), ("long", 5)):
        own = card(page, name)
        assert "fedprox" in own and f">rounds={rounds}<" in own and "seed=" not in own
        assert "started 2026-01-01 00:00" in own and 'class="badge">finished<' in own
        path = re.search(r'<path d="(M[^"]*)"', own)
        assert path is not None and path[1].count("L") == rounds - 1, "a point for every round"


def test_settings_are_compared_with_runs_of_the_same_method() -> None:
    def item(method: str, mu: float, lr: float) -> Item:
        config = {"method.mu": mu, "training.lr": lr, "method.name": method}
        return Item("", "", "finished", "", "", method=method, config=config)

    one, other, single = with_differences(
        [item("fedprox", 0.1, 1.0), item("fedprox", 1.0, 1.0), item("feddyn", 0.5, 1.0)]
    )
    assert (one.settings, other.settings, single.settings) == (("mu=0.1",), ("mu=1.0",), ())
    assert with_differences([item("a", 1, 0.1), item("b", 1, 0.2)])[1].settings == ("lr=0.2",)


def test_selected_runs_have_their_curves_in_one_figure_by_metric(
    shown: Gallery, folder: Path
) -> None:
    addresses = members(shown)
    page = shown.overlay([addresses["a"], addresses["c"], addresses["b"], "0" * 16])
    figures = re.findall(r'<figure id="figure-overlay-([^"]*)"', page)
    assert figures == ["accuracy", "rmse"]
    names = re.search(r'data-names="([^"]*)"', page)
    assert names is not None and '"c"' in unescape(names[1]) and '"a"' in unescape(names[1])
    assert "3 runs selected" in page
    assert "No run is selected" in shown.overlay([])


def test_a_page_appears_before_all_runs_are_read_and_is_completed(tmp_path: Path) -> None:
    for name in "ab":
        made_up_run(tmp_path / name, rounds=1)
    found = Gallery(tmp_path.resolve(), Limits(read_seconds=0.0))
    assert set(members(found)) == {"a", "b"} and found.page.state().status == "reading"
    assert "0 of 2 runs" in found.page.state().words
    found.limits = Limits(read_seconds=60.0)
    assert found.page.state().status == "finished" and "average" in found.page.html()
