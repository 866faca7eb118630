"""The page in a real Chromium: it renders without complaint, asks no one for anything, and shows
the numbers of the store.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.comparison.entries import open_runs
from equipoise.report import report
from equipoise.runs import Run
from tests.helpers.browser import Browser
from tests.helpers.stores import made_up_run

NAMES = """[...document.querySelectorAll("table.cards tbody tr:not(.hidden)")].map(row => row.dataset.client)"""


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory):
    made: dict[int, Path] = {}

    def page(clients: int) -> Path:
        if clients not in made:
            folder = tmp_path_factory.mktemp(f"clients{clients}")
            made_up_run(folder / "standalone", "standalone", clients, level=0.6)
            report([made_up_run(folder / "fedavg", "fedavg", clients)], folder / "report.html")
            made[clients] = folder
        return made[clients]

    return page


def test_nothing_sticks_out_between_phone_and_desktop(browser: Browser, tmp_path: Path):
    names = ["x" * 64, "University Hospital of the North, Department 3", "north"]
    made_up_run(tmp_path / "standalone", "standalone", names, level=0.6)
    report([made_up_run(tmp_path / "fedavg", "fedavg", names)], tmp_path / "report.html")
    for width in (760, 900, 1000, 1100, 1200):
        browser.open(tmp_path / "report.html", width)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), width


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("clients", [4, 10, 50, 1000])
@pytest.mark.thorough
def test_it_renders_at_every_size_without_complaint(
    browser: Browser, page_of, clients: int, width: int
):
    browser.open(page_of(clients) / "report.html", width)
    assert browser.complaints() == [] and browser.requested() == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth"), (
        "nothing may stick out sideways"
    )
    assert browser.run(
        "[...document.querySelectorAll('.chart')].every(chart => chart.clientHeight > 100)"
    )
    limit = 12 if width < 600 else 50
    assert len(browser.run(NAMES)) == min(clients, limit)
    assert browser.run("document.querySelector('.all').hidden") == (clients <= limit)


def test_the_numbers_on_the_page_are_those_in_the_store(browser: Browser, page_of):
    folder = page_of(10)
    browser.open(folder / "report.html")
    rows = browser.run(
        """[...document.querySelectorAll("table.cards tbody tr")].map(row => [...row.cells].map(cell => [cell.dataset.value, cell.innerText.trim()]))"""
    )
    together, alone = Run(folder / "fedavg").final(), Run(folder / "standalone").final()
    assert {row[0][0] for row in rows} == together.keys()
    for (client, _), samples, local, value, gain, weight, rounds, _ in rows:
        assert float(value[0]) == together[client] and value[1] == f"{100 * together[client]:.1f}"
        assert float(local[0]) == alone[client] and local[1] == f"{100 * alone[client]:.1f}"
        change = together[client] - alone[client]
        assert float(gain[0]) == change and gain[1].startswith(
            f"{100 * change:+.1f}" if change else "0.0"
        )
        assert (samples[1], weight[1], rounds[1]) == (str(100 + int(client)), "10.0 %", "3 of 3")
    measured = open_runs([folder / "fedavg"])[0].aggregates
    tiles = browser.run(
        """[...document.querySelectorAll(".tiles .value")].map(tile => tile.innerText)"""
    )
    assert tiles[:2] == [f"{100 * measured['average']:.1f} %", f"{100 * measured['worst']:.1f} %"]
    gained = sum(together[client] > alone[client] for client in together)
    assert browser.run("document.querySelector('.headline').innerText").startswith(
        f"In this one run {gained} of 10 clients gain"
    )


@pytest.mark.thorough
def test_searching_filtering_sorting_and_unfolding(browser: Browser, page_of):
    folder = page_of(1000)
    browser.open(folder / "report.html")
    browser.run(
        "document.querySelector('.search').value = '77'; "
        "document.querySelector('.search').dispatchEvent(new Event('input'))"
    )
    assert browser.run(NAMES) and all("77" in name for name in browser.run(NAMES))
    assert (
        browser.run("document.querySelector('.count').textContent")
        == f"{len(browser.run(NAMES))} of 1,000 clients shown"
    )
    browser.run(
        "document.querySelector('.search').value = ''; "
        "document.querySelector('.search').dispatchEvent(new Event('input')); "
        "document.querySelector('.losers').click(); document.querySelector('.all').click()"
    )
    together, alone = Run(folder / "fedavg").final(), Run(folder / "standalone").final()
    assert len(browser.run(NAMES)) == sum(together[client] < alone[client] for client in together)
    browser.run("document.querySelector('.losers').click()")
    together_button = (
        "[...document.querySelectorAll('.cards thead button')].find(button => button.textContent "
        "=== 'together')"
    )
    browser.run(f"{together_button}.click()")
    assert [together[client] for client in browser.run(NAMES)] == sorted(together.values())
    browser.run(f"{together_button}.click()")
    assert [together[client] for client in browser.run(NAMES)] == sorted(
        together.values(), reverse=True
    )
    assert browser.run(f"{together_button}.closest('th').getAttribute('aria-sort')") == "descending"


def test_a_screen_reader_finds_names_and_a_keyboard_reaches_the_controls(browser: Browser, page_of):
    browser.open(page_of(10) / "report.html")
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and "role" in node
    ]
    for role in ("image", "searchbox", "checkbox", "button", "columnheader", "rowheader"):
        found = [name for its, name in named if its == role]
        assert found and all(found), f"every {role} needs a name"
    assert next(name for role, name in named if role == "heading") == "fedavg on digits"
    focused = []
    for _ in range(5):
        for kind in ("keyDown", "keyUp"):
            browser.call(
                "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
            )
        focused.append(
            browser.run(
                "document.activeElement.className || document.activeElement.id || "
                "document.activeElement.textContent"
            )
        )
    assert focused == ["skip", "search", "losers", "client", "training samples"]


def test_it_prints(browser: Browser, page_of):
    browser.open(page_of(10) / "report.html")
    assert browser.printed()[:5] == b"%PDF-"


def test_the_page_of_a_comparison(browser: Browser, page_of):
    folder = page_of(10)
    if not (folder / "fedprox").exists():
        made_up_run(folder / "fedprox", "fedprox", 10, level=0.7)
    names = ("standalone", "fedavg", "fedprox")
    report([folder / name for name in names], folder / "comparison.html")
    for width in (1200, 390):
        browser.open(folder / "comparison.html", width)
        assert browser.complaints() == [] and browser.run(
            "document.documentElement.scrollWidth <= innerWidth"
        )
    cells = browser.run(
        """[...document.querySelectorAll("table.methods tbody tr")].map(row => [...row.cells].map(cell => cell.innerText))"""
    )
    entries = {
        entry.label: entry.aggregates for entry in open_runs([folder / name for name in names])
    }
    for method, _, average, worst, *_ in cells:
        assert (average, worst) == (
            f"{100 * entries[method]['average']:.1f}",
            f"{100 * entries[method]['worst']:.1f}",
        )
