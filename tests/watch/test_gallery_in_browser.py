"""A gallery in a real Chromium: searching, sorting, and the curves of selected runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from equipoise.watch.serving import WatchServer
from tests.helpers.browser import Browser
from tests.helpers.stores import change, made_up_run

NAMES = """[...document.querySelectorAll(".gallery li:not(.hidden)")]
    .map((card) => card.dataset.name)"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gallery")
    made_up_run(folder / "low", level=0.3)
    made_up_run(folder / "high", "fedprox", level=0.6)
    made_up_run(folder / "half", rounds=4, finished=False)
    change(made_up_run(folder / "diverged"), "update measurements set value = null")
    with WatchServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.address
        server.shutdown()
        thread.join()


def choose(browser: Browser, control: str, value: str) -> None:
    browser.run(
        f"""(() => {{
            const control = document.getElementById("gallery-{control}");
            control.value = "{value}";
            control.dispatchEvent(new Event("input"));
        }})()"""
    )


def test_cards_are_searched_filtered_and_sorted(browser: Browser, address: str) -> None:
    browser.open(address)
    choose(browser, "search", "FedProx")
    assert browser.run(NAMES) == ["high"]
    choose(browser, "search", "")
    choose(browser, "status", "stopped")
    assert browser.run(NAMES) == ["half"]
    choose(browser, "status", "")
    choose(browser, "order", "name")
    assert browser.run(NAMES) == ["diverged", "half", "high", "low"]
    choose(browser, "order", "best")
    best = browser.run(NAMES)
    choose(browser, "order", "worst")
    worst = browser.run(NAMES)
    assert best.index("high") < best.index("low") and worst.index("high") > worst.index("low")
    assert best[-1] == worst[-1] == "diverged", "a run without an average comes last"


def test_the_curves_of_selected_runs_appear_in_one_figure(browser: Browser, address: str) -> None:
    browser.open(address)
    for name in ("low", "high"):
        browser.run(f"document.querySelector('[data-name={name}] input[name=run]').click()")
    legend = """[...document.querySelectorAll("#overlay .legend button")]
        .map((button) => button.textContent)"""
    end = time.monotonic() + 60
    while sorted(browser.run(legend)) != ["high", "low"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    for name in ("low", "high"):
        browser.run(f"document.querySelector('[data-name={name}] input[name=run]').click()")
    assert browser.run("document.getElementById('overlay').hidden")
    assert browser.complaints() == []
