"""What a reader can do with a page in a browser, and what is left of it without JavaScript."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.report import report
from tests.helpers.browser import Browser
from tests.helpers.stores import made_up_run

TIP = "document.querySelector('#figure-curves .tip')"
BUTTON = "[...document.querySelectorAll('#figure-curves .legend button')]"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a comparison of three methods."""
    folder = tmp_path_factory.mktemp("interaction")
    made_up_run(folder / "standalone", "standalone", 10, level=0.55)
    for method in ("fedavg", "fedprox"):
        made_up_run(folder / method, method, 10)
    runs = [folder / name for name in ("standalone", "fedavg", "fedprox")]
    return report(runs, folder / "page.html")[0]


def move_to(browser: Browser, figure: str, number: int) -> str:
    """Move the mouse to a value of a figure; return the text of the value."""
    x, y, text = browser.run(
        f"""(() => {{
            const chart = document.querySelector("#figure-{figure} .chart");
            chart.scrollIntoView({{ block: "center" }});
            const box = chart.getBoundingClientRect();
            const scale = box.width / chart.viewBox.baseVal.width;
            const [x, y, , text] = JSON.parse(chart.dataset.spots)[{number}];
            return [box.left + scale * x, box.top + scale * y, text];
        }})()"""
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 1, y=y + 1)
    return str(text)


def press(browser: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def test_a_value_is_shown_where_the_mouse_points(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run(f"{TIP}.hidden")
    text = move_to(browser, "curves", 2)
    assert text.startswith("standalone, round 3: ") and text.endswith(" %")
    assert browser.run(f"{TIP}.textContent") == text and not browser.run(f"{TIP}.hidden")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert browser.run(f"{TIP}.hidden")


def test_the_arrow_keys_move_from_value_to_value(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('#figure-curves .canvas').focus()")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        press(browser, key)
        seen.append(browser.run(f"{TIP}.textContent").partition(":")[0])
    assert seen == ["standalone, round 1", "standalone, round 2", "standalone, round 1"]
    press(browser, "Escape")
    assert browser.run(f"{TIP}.hidden")


def test_a_series_can_be_hidden_and_its_values_with_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    lines = """[...document.querySelectorAll("#figure-curves [data-series='0']")]"""
    assert browser.run(f"{BUTTON}.map((one) => one.textContent)") == [
        "standalone",
        "fedavg",
        "fedprox",
    ]
    browser.run(f"{BUTTON}[0].click()")
    assert browser.run(f"{BUTTON}[0].getAttribute('aria-pressed')") == "false"
    assert browser.run(f"{lines}.length") >= 2, "the line and its name"
    assert browser.run(f"{lines}.every((part) => getComputedStyle(part).display === 'none')")
    browser.run("document.querySelector('#figure-curves .canvas').focus()")
    press(browser, "ArrowRight")
    assert browser.run(f"{TIP}.textContent").startswith("fedavg, round 1")
    browser.run(f"{BUTTON}[0].click()")
    assert browser.run(f"{lines}.every((part) => getComputedStyle(part).display !== 'none')")


def test_every_table_can_be_sorted_and_a_long_one_searched(browser: Browser, page: Path) -> None:
    browser.open(page)
    names = """[...document.querySelectorAll("table.changes tbody tr:not(.hidden) th")]
        .map((cell) => cell.textContent)"""
    browser.run("document.querySelector('table.changes thead button').click()")
    assert browser.run(names) == [str(number) for number in range(10)]
    alone = "document.querySelectorAll('table.changes thead button')[1]"
    browser.run(f"{alone}.click()")
    values = browser.run(
        """[...document.querySelectorAll("table.changes tbody tr")]
            .map((row) => Number(row.cells[1].textContent))"""
    )
    assert values == sorted(values)
    browser.run(
        """(() => {
            const search = document.querySelector("table.changes").closest(".sheet")
                .querySelector(".search");
            search.value = "7";
            search.dispatchEvent(new Event("input"));
        })()"""
    )
    assert browser.run(names) == ["7"]


def test_without_javascript_everything_is_there(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        text = browser.call("DOM.getOuterHTML", nodeId=document(browser))["outerHTML"]
        body = text[text.index("<body>") :]
        assert body.count('class="chart"') == body.count("<figure ") > 3
        assert "static-legend" in body and 'class="legend"' not in body
        assert body.count("<tr") > 15 and 'class="hidden"' not in body
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def document(browser: Browser) -> int:
    return int(browser.call("DOM.getDocument", depth=0)["root"]["nodeId"])
