"""What a watcher says of runs: how far they are, which there are in a folder, and in which words; without a server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.comparison import Comparison, formats, opened
from equipoise.comparison.table import Failure
from equipoise.runs import Run
from equipoise.storage.store import RunError, Store
from equipoise.watch import gallery, pages
from equipoise.watch.gallery import Gallery
from equipoise.watch.pages import comparison_page, in_words, open_inside, run_page
from equipoise.watch.progress import duration, progress_of
from equipoise.watch.serving import Watcher
from tests.helpers.stores import change, made_up_run


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1 s"), (1.6, "2 s"), (89.4, "89 s"), (90, "2 min"), (150, "2 min"), (5340, "89 min"), (5400, "1 h 30 min"), (172740, "47 h 59 min"),
     (172800, "2 days 0 h"), (259200 + 3600 * 5, "3 days 5 h")],
)  # fmt: skip
def test_times_are_as_exact_as_they_are_worth(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_left_follows_from_the_last_ten_rounds(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", rounds=14, finished=False)
    change(run, "update seconds set seconds = 1000 where round <= 3")
    writing = Store(run, writing=True)
    try:
        assert (
            progress_of(run).words == "going on: round 13 of 14, about 1 s left"
            and progress_of(run).key == "going-13-True"
        )
        writing.db.execute("update seconds set seconds = 100 where round = 4")
        assert progress_of(run).words == "going on: round 13 of 14, about 31 s left", (
            "three phases of 100 s and nine rounds of 0.7 s, over ten"
        )
        writing.db.execute("delete from seconds")
        assert progress_of(run).words == "going on: round 13 of 14"
    finally:
        writing.close()
    for rounds, words in ((1, "finished after 1 round"), (2, "finished after 2 rounds")):
        found = progress_of(made_up_run(tmp_path / str(rounds), rounds=rounds))
        assert (found.words, found.status, found.measured, found.failed) == (
            words,
            "finished",
            True,
            (),
        )
    assert not progress_of(made_up_run(tmp_path / "begun", rounds=1, finished=False)).measured


def test_eight_clients_that_failed_are_named(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    change(run, *(f"insert into rejected values (1, 0, 1, 'c{k}', 'x')" for k in range(8)))
    assert [line.split()[1] for line in progress_of(run).failed] == [f"c{k}" for k in range(8)]
    change(run, "insert into rejected values (2, 0, 1, 'd', 'x')")
    failed = progress_of(run).failed
    assert (
        failed[0].startswith("client d did not count in round 2: x")
        and failed[-1] == "and 1 more clients"
        and len(failed) == 9
    )


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (RunError("no  such\nrun"), "No such run"),
        (ValueError("odd"), "Odd"),
        (RunError(""), "It cannot be read (RunError: )."),
        (KeyError("x"), "It cannot be read (KeyError: 'x')."),
        (OSError("y" * 300), f"It cannot be read (OSError: {'y' * 200})."),
    ],
)
def test_errors_are_told_in_a_sentence(error: Exception, sentence: str) -> None:
    assert in_words(error) == sentence


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, an older one of values, a stopped one, a comparison and one that is not finished."""
    folder = tmp_path_factory.mktemp("gallery").resolve()
    made_up_run(folder / "a", clients=3)
    made_up_run(folder / "b", regression=True, seed=4)
    made_up_run(folder / "c", "fedprox", finished=False)
    change(folder / "c", "insert into rejected values (1, 0, 1, '0', 'x')")
    for place in ("both", "half"):
        for method in ("standalone", "fedavg"):
            made_up_run(folder / place / "runs" / method, method)
    entries = opened(
        [folder / "both" / "runs" / method for method in ("standalone", "fedavg")]
    ).entries
    formats.save(Comparison(entries, "fedavg", [Failure("x", "iid", 0, "no")], folder / "both"))
    for place, name in enumerate(
        ("b", "a", "c", "both", "half/runs/standalone", "half/runs/fedavg")
    ):
        for file in ("run.db", "comparison.json"):
            if (folder / name / file).exists():
                os.utime(folder / name / file, ns=(place, 1_000_000_000 * (place + 1)))
        (folder / name / "run.db-wal").unlink(missing_ok=True)
    return folder


def listed(found: Gallery) -> list[str]:
    return re.findall(r'<a href="[0-9a-f]{16}/">([^<]*)</a>', found.page.html())


@pytest.fixture
def shown(folder: Path) -> Iterator[Gallery]:
    yield Gallery(folder)
    for stray in folder.glob("**/run.db-*"):
        stray.unlink()


def test_a_gallery_has_the_newest_first_and_says_how_each_stands(
    shown: Gallery, folder: Path
) -> None:
    page = " ".join(shown.page.html().replace("\u00a0", " ").split())
    assert listed(shown) == ["half/runs/fedavg", "half/runs/standalone", "both", "c", "a", "b"]
    assert (
        "6 runs and comparisons" in page
        and "are shown." not in page
        and "no run in this folder" not in page
    )
    values = list(Run(folder / "a").final().values())
    assert (
        f"accuracy: average {100 * sum(values) / 3:.1f} %, lowest {100 * min(values):.1f} %" in page
    )
    errors = list(Run(folder / "b").final().values())
    assert f"rmse: average {sum(errors) / 4:.4f}, highest {max(errors):.4f}" in page
    assert (
        "fedavg on digits, 3 clients, seed 0; finished after 3 rounds" in page
        and "4 clients, seed 4" in page
    )
    assert (
        "fedprox on digits, 4 clients, seed 0; stopped after round 2 of 3" in page
        and "completes it; 1 clients failed" in page
    )
    assert "comparison of 2 methods on digits, 1 seeds; 1 runs failed" in page
    state = shown.page.state()
    assert (state.status, state.words) == ("finished", "nothing is going on") and len(
        state.version
    ) == 16


def test_what_has_not_changed_is_not_asked_again(
    shown: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    original = gallery.progress_of
    monkeypatch.setattr(
        gallery, "progress_of", lambda folder: [asked.append(folder.name), original(folder)][1]
    )
    first = shown._look()
    assert sorted(asked) == ["a", "b", "c", "fedavg", "standalone"]
    for stray in shown.root.glob("**/run.db-wal"):
        assert stray.stat().st_size == 0, "readers leave an empty file, which is no change"
    assert shown._look() == first and len(asked) == 5
    os.utime(shown.root / "a" / "run.db", ns=(5, 5))
    assert shown._look().version != first.version and listed(shown)[-1] == "a"
    assert asked[5:] == ["a"]
    os.utime(shown.root / "a" / "run.db", ns=(2_000_000_000, 2_000_000_000))
    os.utime(shown.root / "c" / "run.db", ns=(3_500_000_000, 3_500_000_000))
    writing = Store(shown.root / "c", writing=True)
    try:
        assert (shown._look().status, shown._look().words) == ("going", "1 going on")
        assert asked[6:] == ["c", "a", "c"], "one that goes on is asked every time"
    finally:
        writing.close()


def test_very_many_are_bounded(shown: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "SHOWN", 2)
    assert listed(shown) == ["half/runs/fedavg", "half/runs/standalone"]
    assert (
        "6 runs and comparisons" in shown.page.html()
        and "The newest 2 are shown." in shown.page.html()
    )
    for budget, names in (
        (0, []),
        (1, ["a"]),
        (5, ["a", "b", "both", "c"]),
        (6, ["a", "b", "both", "c", "half/runs/fedavg"]),
    ):
        monkeypatch.setattr(gallery, "LOOKED_INTO", budget)
        assert [str(path.relative_to(shown.root)) for path in gallery._members(shown.root)] == names


def test_pages_of_members_are_kept_and_the_oldest_goes_first(
    shown: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "KEPT", 2)
    first, second, third = (
        gallery._address(shown.root / name, shown.root) for name in ("a", "b", "both")
    )
    one, two = shown.member(first), shown.member(second)
    assert (
        one is not None
        and shown.member(first) is one
        and shown.member(second) is two
        and shown.member("0" * 16) is None
    )
    three = shown.member(third)
    assert (
        three is not None
        and three.state().words == "a finished comparison"
        and shown.member(second) is two
    )
    assert shown.member(first) is not one


def test_a_comparison_by_itself_comes_before_its_runs_and_one_is_not_several(
    folder: Path, tmp_path: Path
) -> None:
    members = [str(path.relative_to(folder)) for path in gallery._members(folder / "both")]
    assert members == ["both", "both/runs/fedavg", "both/runs/standalone"]
    alone = Gallery(tmp_path)
    assert (
        "0 runs and comparisons" in alone.page.html()
        and "no run in this folder yet" in alone.page.html()
    )
    made_up_run(tmp_path / "one")
    assert "1 run or comparison" in Gallery(tmp_path).page.html()


def test_a_comparison_that_is_gone_or_damaged_says_so(folder: Path, tmp_path: Path) -> None:
    page = comparison_page(tmp_path / "gone", tmp_path, "../")
    assert (
        page.state().status == "damaged"
        and "It cannot be read (FileNotFoundError" in page.html()
        and 'href="../"' in page.html()
    )
    for text in ("{", "[]", '{"entries": [1]}'):
        (tmp_path / "comparison.json").write_text(text)
        with pytest.raises(RunError, match="comparison.json cannot be read: it is damaged"):
            open_inside(tmp_path, tmp_path)
    saved = json.loads((folder / "both" / "comparison.json").read_text())
    assert [entry.label for entry in open_inside(folder / "both", folder).entries] == [
        "standalone",
        "fedavg",
    ]
    (tmp_path / "comparison.json").write_text(
        json.dumps({**saved, "entries": [{**saved["entries"][0], "run": None, "alone": "../x"}]})
    )
    with pytest.raises(RunError, match="which is not inside"):
        open_inside(tmp_path, tmp_path)


def test_a_folder_without_a_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    page = run_page(tmp_path / "nothing", "../")
    state = page.state()
    assert (
        (state.version, state.status) == ("unreadable", "damaged")
        and "nothing" in state.words
        and state.words in page.html()
    )


def test_making_a_page_takes_at_most_a_fifth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages.time, "monotonic", lambda: 103.0)
    assert (
        pages._pause(100.0, 2.0) == 103 + 4 * 3
        and pages._pause(102.9, 2.0) == 105
        and pages.AT_LEAST == 2.0
    )


def test_addresses_lead_to_a_page_or_nowhere(folder: Path) -> None:
    with Watcher(folder) as server, Watcher(folder / "a") as single:
        member = gallery._address(folder / "a", folder)
        assert server.gallery is not None and single.gallery is None
        for path, what in (("", ""), ("state", "state"), ("x", "x"), ("state?a=/b/", "state")):
            assert server.found(f"/{server.token}/{path}") == (server.page, what)
        assert server.found(f"/{server.token}/{member}/state") == (
            server.gallery.member(member),
            "state",
        )
        for path in (
            f"{server.token}",
            f"{member}/",
            f"{server.token}/0/",
            f"{server.token}/{member}/state/x",
        ):
            assert server.found(f"/{path}") is None
        for path in ("", "/", server.token, f"x/{server.token}/", "?//"):
            assert server.found(path) is None
        assert (
            single.found(f"/{single.token}/") == (single.page, "")
            and single.found(f"/{single.token}/{member}/") is None
        )
