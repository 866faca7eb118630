"""Every page passes the checks of axe-core, in light and dark, on a desktop and on a phone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.report import report, report_study
from equipoise.study.definition import load_study
from equipoise.watch.serving import WatchServer
from tests.helpers.browser import Browser
from tests.helpers.constructed import write_constructed
from tests.helpers.stores import made_up_run

pytestmark = pytest.mark.slow
AXE = Path(__file__).parent.parent / "helpers" / "axe" / "axe.min.js"
PAPERS = Path(__file__).parents[2] / "experiments" / "papers"
PAGES = ["run", "comparison", "errors", "study", "gallery", "overlay"]
VIOLATIONS = """
axe.run(document).then(({ violations }) => violations.map(({ id, nodes }) =>
    [id, ...nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]))
"""
OPEN = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The address of every kind of page."""
    folder = tmp_path_factory.mktemp("accessible")
    runs = folder / "runs"
    made_up_run(runs / "standalone", "standalone", 10, level=0.55)
    for method in ("fedavg", "fedprox"):
        made_up_run(runs / method, method, 10, rounds=3)
    made_up_run(runs / "stopped", "fedavg", 10, rounds=4, finished=False)
    errors = made_up_run(folder / "errors", regression=True)
    (runs / "broken").mkdir()
    (runs / "broken" / "run.db").write_bytes(b"x")
    several = [runs / name for name in ("standalone", "fedavg", "fedprox")]
    pages = {
        "run": report([runs / "fedavg"], folder / "run.html")[0].as_uri(),
        "comparison": report(several, folder / "comparison.html")[0].as_uri(),
        "errors": report([errors], folder / "errors.html")[0].as_uri(),
    }
    study = folder / "office-t.yaml"
    shutil.copy(PAPERS / "fedequilibria" / "office-t.yaml", study)
    write_constructed(load_study(study), "small")
    pages["study"] = report_study(study, folder / "study.html", "small")[0].as_uri()
    with WatchServer(runs) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        assert server.gallery is not None
        chosen = "&".join(
            f"run={item.address[:-1]}" for item in server.gallery.items() if item.spark
        )
        pages["gallery"] = server.address
        pages["overlay"] = f"{server.address}overlay?{chosen}"
        yield pages
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_violation_and_nothing_sticks_out(
    browser: Browser, addresses: dict[str, str], page: str, scheme: str, width: int
) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", media="screen", features=features)
    browser.open(addresses[page], width)
    browser.run(OPEN)
    browser.run(AXE.read_text(encoding="utf-8") + "; 0")
    assert browser.run(VIOLATIONS) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.complaints() == []
