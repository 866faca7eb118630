"""Hooks of MkDocs: pages that are made at build time, and links out of the folder `docs`.

Pages of the repository link to each other as files, so that they also work on a forge. The site
holds the folder `docs`, some pages of the root, and the notebooks as pages. A link to any other
file of the repository becomes plain text with its path.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages outside of the folder `docs`: path in the repository -> path in the site.
INCLUDED = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/RESULTS.md": "project/speed.md",
    "benchmarks/COSTS.md": "project/costs.md",
    "benchmarks/METHODS.md": "project/method-costs.md",
    "experiments/defaults.md": "project/defaults.md",
}
FENCE = re.compile(r"(^ {0,3}```.*?^ {0,3}```[ \t]*$)", re.MULTILINE | re.DOTALL)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, the pages of the root and the notebooks."""
    for uri, text in reference.pages().items():
        files.append(File.generated(config, uri, content=text))
    for path, uri in INCLUDED.items():
        if (ROOT / path).exists():
            text = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, uri, content=text))
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        uri = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, uri, content=notebook_text(notebook)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links to files that are elsewhere in the site, or not in it."""
    uri = page.file.src_uri
    markdown = DIAGRAM.sub(lambda match: diagram_table(match[1]), markdown)
    return rewrite_links(markdown, uri, repository_path(uri))


def diagram_table(source: str) -> str:
    """Return a Mermaid diagram as a table, since its program would come from the network.

    Args:
        source: A sequence diagram, or a flow chart of layers with their members.
    """
    if source.lstrip().startswith("sequenceDiagram"):
        names = dict(re.findall(r"participant (\w+) as (.+)", source))
        rows = ["| from | to | message |", "|---|---|---|"]
        for sender, receiver, message in re.findall(r"(\w+)-+>>(\w+): (.+)", source):
            rows.append(
                f"| {names.get(sender, sender)} | {names.get(receiver, receiver)} | {message} |"
            )
    else:
        rows = ["| layer, from top to bottom | packages |", "|---|---|"]
        for title, members in re.findall(r"subgraph \w+ \[(.+)\]\n\s+(.+)", source):
            rows.append(f"| {title} | {members.replace(' ~~~ ', ', ')} |")
    return "\n".join(rows)


def repository_path(uri: str) -> str:
    """Return the path in the repository of a page of the site."""
    for path, included in INCLUDED.items():
        if included == uri:
            return path
    return f"docs/{uri}"


def site_uri(path: str) -> str | None:
    """Return the path in the site of a file of the repository; None if the site lacks it."""
    if path in INCLUDED:
        return INCLUDED[path]
    if not path.startswith("docs/"):
        return None
    uri = path.removeprefix("docs/")
    if uri.endswith(".py"):
        return None
    if uri.startswith("notebooks/"):
        return uri.removesuffix(".ipynb") + ".md" if uri.endswith(".ipynb") else uri
    return uri


def rewrite_links(markdown: str, uri: str, path: str) -> str:
    """Return the text of a page with links that work in the site.

    Args:
        markdown: The text of the page.
        uri: The path of the page in the site.
        path: The path of the page in the repository, which its links start from.
    """

    def rewritten(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        file, mark, anchor = target.partition("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        inside = site_uri(linked)
        if inside is not None:
            relative = posixpath.relpath(inside, posixpath.dirname(uri) or ".")
            return f"[{text}]({relative}{mark}{anchor})"
        if not (ROOT / linked).exists():
            return match[0]  # a broken link, which the strict build reports
        return text if linked in text else f"{text} (`{linked}`)"

    parts = FENCE.split(markdown)
    return "".join(part if FENCE.fullmatch(part) else LINK.sub(rewritten, part) for part in parts)


def notebook_text(path: Path) -> str:
    """Return a notebook as a page: its text, its code, and a link to the file."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    blocks = []
    for cell in cells:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    download = (
        f'<p><a href="{path.name}" download>Download this page as a notebook</a>; tests run it '
        "from top to bottom.</p>"
    )
    title, _, rest = blocks[0].partition("\n")
    return "\n\n".join([title, download, rest.strip(), *blocks[1:]]) + "\n"
