"""The documentation site: pages that are made from the code, links, and a build that needs no
network.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from equipoise import methods
from equipoise.experiment import Experiment
from tests.helpers.browser import Browser, find_chromium
from tests.helpers.runs import environment

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """A module of docs/tools, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    pages: dict[str, str] = tool("reference").pages()
    return pages


def test_every_key_of_the_configuration_has_a_meaning(made: dict[str, str]) -> None:
    page = made["reference/configuration.md"]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.*) \|$", page, re.MULTILINE)
    assert {key for key, _ in rows} > {"rounds", "seed", "lr", "partition", "fraction", "metrics"}
    assert [key for key, meaning in rows if not meaning.strip()] == []
    for section in ("data", "training", "participation", "evaluation", "faults"):
        assert f"\n## {section}\n" in page
        assert section in Experiment.model_fields


def test_every_command_has_its_options_with_their_help(made: dict[str, str]) -> None:
    page = made["reference/cli.md"]
    for command in ("run", "compare", "data check", "network init", "site start", "doctor"):
        assert f"\n## equipoise {command}\n" in page
    rows = re.findall(r"^\| (`-.+`) \| .* \| .* \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 150
    assert [option for option, meaning in rows if not meaning.strip()] == []


def test_every_method_has_its_parameters(made: dict[str, str]) -> None:
    headings = re.findall(r"^## (\w+)$", made["reference/method-parameters.md"], re.MULTILINE)
    assert sorted(headings) == methods.names()


@pytest.mark.slow
def test_the_site_is_built_strictly_asks_no_host_and_is_searched_offline(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?([^\s\">]+)", page.read_text()
        )
        assert [url for url in loaded if url.startswith(("http", "//"))] == [], page
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium")
    browser = Browser(program)
    try:
        browser.open((tmp_path / "index.html").as_uri())
        found = browser.run(
            "(() => { const box = document.querySelector('.md-search__input'); box.focus();"
            " box.value = 'dirichlet'; box.dispatchEvent(new Event('keyup')); })()"
        )
        for _ in range(60):
            found = browser.run("document.querySelectorAll('.md-search-result__link').length")
            if found:
                break
            time.sleep(0.5)
        assert found > 3
    finally:
        browser.close()
