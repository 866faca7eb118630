"""Seconds until the gallery of a folder with many runs appears, and until it is complete.

    python benchmarks/gallery.py --runs 500

trains one run of 10 clients and 50 rounds, copies it with other seeds, learning rates and methods
into a temporary folder, and prints the seconds until the first page, until every run on it has been
read, and for a look at the folder when nothing has changed. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from pathlib import Path

import equipoise as eq
from equipoise.watch.gallery import Gallery

METHODS = ("fedavg", "fedprox", "scaffold", "ditto")
RATES = 10


def write_runs(folder: Path, count: int) -> None:
    """Write runs whose cards differ in method, seed and learning rate."""
    original = folder / ".original"
    eq.run({"data": {"name": "digits", "clients": 10}, "method": "fedavg", "rounds": 50}, original)
    text = (original / "experiment.yaml").read_text()
    for number in range(count):
        run = folder / f"run-{number}"
        shutil.copytree(original, run)
        own = text.replace("name: fedavg", f"name: {METHODS[number % len(METHODS)]}")
        own = re.sub(r"^seed: .*", f"seed: {number // len(METHODS)}", own, flags=re.MULTILINE)
        own = re.sub(r"^  lr: .*", f"  lr: {(1 + number % RATES) / 100}", own, flags=re.MULTILINE)
        (run / "experiment.yaml").write_text(own)
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
        cards = [item for item in gallery.items() if item.status == "finished"]
        time.sleep(2 * complete)  # until the gallery looks again
        start = time.perf_counter()
        gallery.page.state()
        again = time.perf_counter() - start
    print(
        f"{len(cards)} of {count} runs: first page {first:.2f} s ({size / 1e6:.2f} MB), "
        f"complete {complete:.2f} s, unchanged {again:.2f} s"
    )


if __name__ == "__main__":
    main()
