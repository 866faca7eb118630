"""A run that trains in a process of its own, looked at in a real Chromium: the page follows without being loaded anew."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import equipoise
from equipoise.runs import Run
from equipoise.watch.serving import WatchServer
from tests.helpers.browser import Browser

ROUNDS = 6
# Trains, and after every round waits until it may go on: so what the page shows of it does not depend on who is faster.
TRAINING = f"""
import sys, time
from pathlib import Path
import equipoise as eq
from equipoise.simulate import run
from equipoise.callbacks import Callback
folder = Path(sys.argv[1])
class Waiting(Callback):
    def on_round(self, record):
        end = time.monotonic() + 300
        while not (folder / f"go-{{record.round}}").exists() and time.monotonic() < end:
            time.sleep(0.02)
run(eq.Experiment(data={{"name": "digits", "clients": 4}}, method="fedavg", rounds={ROUNDS}, seed=1, workers=0, training={{"steps": 2}},
    faults={{"script": [{{"round": 2, "attempt": 0, "exchange": 1, "client": "3", "kind": "drop"}}]}}), folder / "run", Waiting())
"""


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Path]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(equipoise.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen([sys.executable, "-c", TRAINING, str(tmp_path)], env=environment)
    try:
        until(
            lambda: (tmp_path / "run" / "run.db").exists() and Run(tmp_path / "run").last_round == 1
        )
        yield tmp_path
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture
def server(training: Path) -> Iterator[WatchServer]:
    with WatchServer(training) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def until(true: object, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


@pytest.mark.slow
def test_the_page_follows_a_run_that_trains(
    browser: Browser, training: Path, server: WatchServer
) -> None:
    def words() -> str:
        """The words of the bar; where they name a round, the page must show the same one."""
        text, rounds = browser.run(
            """[document.getElementById("live-words").textContent,
                [...document.querySelectorAll("dt")].find((one) => one.textContent === "rounds")
                    ?.nextElementSibling.textContent]"""
        )
        named = re.search(r"round (\d+ of \d+)", text)
        assert rounds is None or named is None or rounds == named[1], "one moment"
        return str(text)

    def headings() -> list[str]:
        return list(browser.run("[...document.querySelectorAll('h2')].map(one => one.textContent)"))

    browser.open(server.address)
    assert (
        "1 run in progress" in words()
        and browser.run("document.querySelectorAll('.gallery li.running').length") == 1
    )
    browser.open(
        server.address + browser.run("document.querySelector('.gallery a').getAttribute('href')")
    )
    assert (
        words().startswith(f"in progress: round 1 of {ROUNDS}, about")
        and "Report card of every client" in headings()
    )
    assert browser.complaints() == []
    # What a reload, or a part that is swapped without care, would lose.
    browser.run(
        "window.same = document.querySelector('.search'); same.value = '2'; same.dispatchEvent(new Event('input')); same.focus()"
    )
    browser.run(
        "document.querySelector('details').open = true; document.getElementById('cards').scrollIntoView()"
    )
    top = "document.getElementById('cards').getBoundingClientRect().top"
    reading = browser.run(top)
    browser.run(
        "window.blank = 0; new MutationObserver(() => { for (const i of document.querySelectorAll('.canvas')) if (!i.querySelector('.chart')) window.blank++ })"
        ".observe(document.body, {childList: true, subtree: true})"
    )
    drawn = "document.getElementById('figure-curves').querySelector('.chart').dataset.spots"
    pictures = browser.run(drawn)
    values = """[...document.querySelectorAll("table.cards tbody tr")].map(row => [row.dataset.client, Number(row.cells[2].dataset.value)])"""
    for number in range(1, ROUNDS):
        (training / f"go-{number}").touch()
        if number == 1:
            until(lambda: words().startswith(f"in progress: round 2 of {ROUNDS}"))
            assert "client 3 did not count in round 2" in browser.run(
                "document.getElementById('live-failed').textContent"
            )
    until(lambda: browser.run("document.getElementById('live-bar').value") == ROUNDS)
    (training / f"go-{ROUNDS}").touch()
    until(lambda: words() == f"finished after {ROUNDS} rounds")
    final = Run(training / "run").final()
    until(lambda: dict(browser.run(values)) == final)
    until(lambda: browser.run(drawn) != pictures)
    assert browser.run("window.blank") == 0, "at no moment a figure is missing"
    assert browser.run("document.activeElement === same && same.value") == "2" and browser.run(
        "document.querySelector('details').open"
    )
    assert browser.run(
        "[...document.querySelectorAll('table.cards tbody tr:not(.hidden)')].map(row => row.dataset.client)"
    ) == ["2"]
    assert abs(browser.run(top) - reading) < 3 and browser.complaints() == [], (
        "what was being read stays where it is"
    )


@pytest.mark.slow
def test_a_watcher_that_is_gone_is_noticed(browser: Browser, training: Path) -> None:
    with WatchServer(training / "run") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        browser.open(server.address)
        server.shutdown()
        thread.join()
    for number in range(1, ROUNDS + 1):
        (training / f"go-{number}").touch()
    until(lambda: "no answer" in browser.run("document.getElementById('live-words').textContent"))
    assert browser.run("document.getElementById('live').className") == "live lost"
