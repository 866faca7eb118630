"""How long the gallery of a folder with many runs takes to appear, and to be complete.

    python benchmarks/gallery.py --runs 500

writes runs of 10 clients and 50 rounds into a temporary folder and prints the seconds until the
first page, and until every run on it has been read. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from equipoise.watch.gallery import Gallery
from tests.helpers.stores import made_up_run

METHODS = ("fedavg", "fedprox")


def write_runs(folder: Path, count: int) -> None:
    """Write runs; they are copies of one run of each method, since creating them takes longer."""
    originals = [made_up_run(folder / f".{name}", name, clients=10, rounds=50) for name in METHODS]
    for number in range(count):
        shutil.copytree(originals[number % len(originals)], folder / f"run-{number}")
    for original in originals:
        shutil.rmtree(original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    count = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_runs(folder, count)
        gallery = Gallery(folder)
        start = time.perf_counter()
        size = len(gallery.page.html())
        first = time.perf_counter() - start
        while gallery.page.state().status == "reading":
            continue
        complete = time.perf_counter() - start
    print(
        f"{count} runs: first page {first:.2f} s ({size / 1e6:.2f} MB), complete {complete:.2f} s"
    )


if __name__ == "__main__":
    main()
