"""Mutation testing: the share of changes of the source that some test catches.

    make mutate N=200 SEED=1

Changes are sampled at random with a seed, and each is tried against the tests that run the changed
line. Nothing is changed in place: each lane works on a copy of the tree. First the suite is run to
record which test runs which line. The record is stored under .mutation/; later only changed files
of tests are run again. A change is caught if a test fails or hangs that passes without the change.
The changes that survive are listed. A change that nobody can notice is left out by the rules of
`changes.py` or by a marker in the source.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import difflib
import hashlib
import importlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from changes import Change, changes
from plugins import Choose, Record

HERE = Path(__file__).resolve().parent
SOURCE = "src/equipoise"
LEFT_OUT = (
    ".git",
    ".venv",
    ".mutation",
    ".hypothesis",
    "runs",
    "comparisons",
    "dist",
    "build",
)  # at the top of the tree
ENOUGH = 90.0  # Per cent of the changes that should be caught.
NO_TESTS = 5  # what pytest ends with
OUTPUT, LAST_TEST = "mutation-output.txt", "mutation-last.txt"  # of the last tests in a lane


def main() -> int:
    """Try a sample of changes and print those that survive."""
    options = _options()
    root = options.root.resolve()
    chosen, possible = sample(root, options.only, options.n, options.seed)
    print(
        f"{possible} changes are possible; {len(chosen)} are tried, seed {options.seed}", flush=True
    )
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        lanes = [Path(scratch).resolve() / str(number) for number in range(options.jobs)]
        for lane in lanes:
            _copy(root, lane)
        _warm()
        known = learnt(root, lanes, options.tests)
        survivors = tried(chosen, lanes, known, options.limit)
    caught = len(chosen) - len(survivors)
    share = 100 * caught / max(1, len(chosen))
    print(f"\ncaught {caught} of {len(chosen)}: {share:.1f} %")
    for change, how in sorted(survivors.items(), key=lambda pair: (pair[0].file, pair[0].start)):
        print(f"line {change.line}, {how}\n  {change.name}")
    return 0 if share >= ENOUGH else 1


def _options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    jobs = os.cpu_count() or 1
    parser.add_argument("-n", type=int, default=200, help="number of changes")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=jobs, help="changes tried at a time")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of tests per change")
    parser.add_argument("--tests", nargs="+", default=["tests", "src"], help="tests to use")
    parser.add_argument("--only", default="", help="change only files whose path contains this")
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the tree")
    return parser.parse_args()


def _copy(root: Path, lane: Path) -> None:
    shutil.copytree(
        root,
        lane,
        symlinks=True,
        ignore=lambda folder, names: {
            name
            for name in names
            if name == "__pycache__"
            or name.endswith("_cache")
            or (Path(folder) == root and name in LEFT_OUT)
        },
    )
    compileall.compile_dir(lane / "src", quiet=1)


def sample(root: Path, only: str, n: int, seed: int) -> tuple[list[Change], int]:
    """Return some changes at random, and the number of all.

    Each has a number that follows from its name and the seed, and the lowest are taken: so other
    changes of the source hardly change the sample, and survivors can be tried again.
    """
    files = {
        str(path.relative_to(root)): path.read_text()
        for path in sorted((root / SOURCE).rglob("*.py"))
    }
    possible = [
        change for file, text in files.items() if only in file for change in changes(file, text)
    ]
    names: Counter[str] = Counter()

    def number(change: Change) -> bytes:
        names[change.name] += 1
        return hashlib.blake2b(f"{seed} {names[change.name]} {change.name}".encode()).digest()

    numbered = sorted([(number(change), place) for place, change in enumerate(possible)])
    ordered = (possible[place] for _, place in numbered)
    return list(
        itertools.islice(
            (change for change in ordered if change.is_code(files[change.file].encode())), n
        )
    ), len(possible)


# Which test runs which line.


@dataclass
class Map:
    """The tests that run each line.

    Attributes:
        root: The tree.
        seconds: The duration of each test.
        lines: The tests that run a line, by file and line number.
        files: The tests that run any line of a source file.
        by_processes: The test files that start processes which run a line.
        tests: The tests of each test file.
    """

    root: Path
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    # source file -> tests that run any line of it
    files: dict[str, set[str]] = field(default_factory=dict)
    # files of tests that start processes which run the line
    by_processes: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    tests: dict[str, set[str]] = field(default_factory=dict)  # file of tests -> its tests

    def add(self, row: dict[str, Any]) -> None:
        """Add the recorded lines of one test."""
        test = row["test"]
        self.seconds[test] = row["seconds"]
        self.tests.setdefault(_file(test), set()).add(test)
        for file, numbers in row["lines"].items():
            self.files.setdefault(file, set()).add(test)
            for number in numbers:
                self.lines.setdefault((file, number), set()).add(test)
        for file, numbers in row["children"].items():
            for number in numbers:
                self.by_processes.setdefault((file, number), set()).add(_file(test))

    def of(self, change: Change) -> list[str]:
        """Return the tests that can notice a change.

        Those that run it come first, then the others of their files, which may share fixtures.
        """
        places = [(change.file, line) for line in range(change.line, change.last_line + 1)]
        first = (
            self.files.get(change.file, set())
            if change.runs_at_import
            else {t for place in places for t in self.lines.get(place, ())}
        )
        # a line that is recorded under another number: part of a statement
        if not first and not any(place in self.by_processes for place in places):
            first = self.files.get(change.file, set())
        files = {_file(test) for test in first} | {
            file for place in places for file in self.by_processes.get(place, ())
        }
        # by whoever imports it, from wherever: a default or a bound may be all that a test looks at
        if change.runs_at_import:
            files |= {
                file for file in self.tests if _imports(self.root / file, change.file, package=True)
            }
        totals = {file: sum(self.seconds[test] for test in self.tests[file]) for file in files}
        found = {test for file in files for test in self.tests[file]}
        near = {
            file for file in files if _imports(self.root / file, change.file, change.runs_at_import)
        }
        # Of the files that import the module all tests, then of every other file the quickest test,
        # then the second of each, and so on.
        rank: dict[str, int] = {}
        for file in files:
            by_speed = sorted(
                self.tests[file], key=lambda test: (test not in first, self.seconds[test], test)
            )
            rank |= {test: 0 if file in near else 1 + place for place, test in enumerate(by_speed)}
        return sorted(
            found, key=lambda test: (test not in first, rank[test], totals[_file(test)], test)
        )


def learnt(root: Path, lanes: Sequence[Path], tests: Sequence[str]) -> Map:
    """Return which test runs which line.

    The map is stored as {"sources": {version: {file: text}}, "files": {test file: {"digest",
    "version", "rows"}}}. Test files that have changed since are recorded again, and lines are
    followed to their present position.
    """
    kept = root / ".mutation" / "map.json"
    known = json.loads(kept.read_text()) if kept.exists() else {"sources": {}, "files": {}}
    wanted = {
        str(path.relative_to(root)): path for name in tests for path in _test_files(root / name)
    }
    digests = {
        file: hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        for file, path in wanted.items()
    }
    fresh = [
        file
        for file, digest in digests.items()
        if known["files"].get(file, {}).get("digest") != digest
    ]
    sources = {
        str(path.relative_to(root)): path.read_text()
        for path in sorted((root / SOURCE).rglob("*.py"))
    }
    if fresh:
        print(
            f"running {len(fresh)} files of tests once to learn which test runs which line; this "
            "is kept",
            flush=True,
        )
        version = hashlib.blake2b(repr(sources).encode(), digest_size=8).hexdigest()
        began, rows = time.monotonic(), _traced(root, lanes, fresh)
        failed = [row["test"] for row in rows if not row["passed"]]
        print(
            f"{len(rows)} tests in {time.monotonic() - began:.0f} s"
            + (f"; left out, since they do not pass: {failed}" if failed else "")
        )
        known["sources"][version] = sources
        for file in fresh:
            own = [row for row in rows if _file(row["test"]) == file]
            known["files"][file] = {"digest": digests[file], "version": version, "rows": own}
        known["files"] = {
            file: one for file, one in known["files"].items() if (root / file).exists()
        }
        used = {one["version"] for one in known["files"].values()}
        known["sources"] = {
            version: texts for version, texts in known["sources"].items() if version in used
        }
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(known))
    moves = {version: _moves(then, sources) for version, then in known["sources"].items()}
    found = Map(root)
    for file in wanted:
        for row in known["files"][file]["rows"]:
            if row["passed"]:
                found.add(_followed(row, moves[known["files"][file]["version"]]))
    return found


def _moves(then: dict[str, str], now: dict[str, str]) -> dict[str, dict[int, int]]:
    """Return for every changed file the present number of each line that still exists."""
    found = {}
    for file, text in then.items():
        if now.get(file) != text:
            pair = difflib.SequenceMatcher(
                None, text.splitlines(), now.get(file, "").splitlines(), autojunk=False
            )
            found[file] = {
                a + 1 + n: b + 1 + n
                for a, b, size in pair.get_matching_blocks()
                for n in range(size)
            }
    return found


def _followed(row: dict[str, Any], moved: dict[str, dict[int, int]]) -> dict[str, Any]:
    def now(lines: dict[str, list[int]]) -> dict[str, list[int]]:
        return {
            file: [moved[file][line] for line in old if line in moved[file]]
            if file in moved
            else old
            for file, old in lines.items()
        }

    return {**row, "lines": now(row["lines"]), "children": now(row["children"])}


def _traced(root: Path, lanes: Sequence[Path], tests: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows {test, seconds, passed, lines, children} of all tests, large files first."""
    files = sorted(tests, key=lambda file: -(root / file).stat().st_size)
    rows: list[dict[str, Any]] = []
    ended: list[str] = []

    def begin(lane: Path, file: str) -> tuple[Callable[[], int], float]:
        folder = lane / "mutation-lines"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "path").mkdir(parents=True)
        start = f"import sys\nsys.path.append({str(HERE)!r})\nimport seen\nseen.trace_child()\n"
        # Python imports it in every process that begins
        (folder / "path" / "sitecustomize.py").write_text(start)
        plugin = Record(str(lane / SOURCE), folder)
        return lambda: _pytest(lane, [file], plugin, str(folder / "path")), 3600.0

    def end(lane: Path, file: str, code: int | None) -> list[str]:
        folder = lane / "mutation-lines"
        children: dict[str, set[int]] = {}
        for path in folder.glob("child-*"):
            for line in path.read_text().splitlines():
                source, number = line.split("\t")
                children.setdefault(source, set()).add(int(number))
        found = (
            json.loads((folder / "rows.json").read_text())
            if (folder / "rows.json").exists()
            else []
        )
        if not found and code != NO_TESTS:
            raise SystemExit(
                f"{file} cannot be run; pytest said:\n{(lane / OUTPUT).read_text()[-2000:]}"
            )
        ended.append(file)
        if len(ended) % 20 == 0:
            print(f"{len(ended)} of {len(files)} files of tests", flush=True)
        for row in found:
            row["children"] = {source: sorted(numbers) for source, numbers in children.items()}
            for key in ("lines", "children"):
                row[key] = {
                    str(Path(source).relative_to(lane)): numbers
                    for source, numbers in row[key].items()
                }
            rows.append(row)
        return []

    _side_by_side(files, lanes, begin, end)
    return rows


def _test_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.name == "src":
        return [one for one in path.rglob("*.py") if ">>>" in one.read_text()]
    return list(path.rglob("test_*.py"))


def _imports(tests: Path, source: str, package: bool = False) -> bool:
    """Return True if a test file imports a module of the source, or something from its package."""
    *folders, name = Path(source).relative_to("src").with_suffix("").parts
    parent = re.escape(".".join(folders))
    text = tests.read_text() if tests.exists() else ""
    from_package = rf"|from {parent} import " if package and len(folders) > 1 else ""
    return (
        re.search(rf"\b{parent}\.{name}\b|from {parent} import .*\b{name}\b{from_package}", text)
        is not None
    )


def _file(test: str) -> str:
    return test.partition("::")[0]


# Changes at work.


@dataclass(frozen=True)
class Trial:
    """One change to try against the tests that run it.

    Attributes:
        change: The change.
        doubted: A test that failed; the trial then says if it passes without the change.
    """

    change: Change
    doubted: str = ""


def tried(
    chosen: Sequence[Change], lanes: Sequence[Path], known: Map, limit: float
) -> dict[Change, str]:
    """Return the changes that no test caught, with the number of tests that were tried.

    A failing test counts once it has passed without the change.
    """
    survivors: dict[Change, str] = {}
    done, began, whole = itertools.count(1), {}, {}
    sure: set[str] = set()  # tests that passed in a lane without any change
    broken: set[str] = set()

    def some(change: Change) -> list[str]:
        """Return the quickest tests that run a change: at least one, at most the limit."""
        tests = [test for test in known.of(change) if test not in broken]
        totals = itertools.accumulate(known.seconds[test] for test in tests)
        chosen = [
            test
            for place, (test, total) in enumerate(zip(tests, totals, strict=True))
            if not place or total <= limit
        ]
        files = {file: place for place, file in enumerate(dict.fromkeys(map(_file, chosen)))}
        # file by file: what its tests share is made once
        return sorted(chosen, key=lambda test: files[_file(test)])

    def begin(lane: Path, trial: Trial) -> tuple[Callable[[], int], float]:
        change, place = trial.change, lane / trial.change.file
        tests = [trial.doubted] if trial.doubted else some(change)
        began[lane], whole[lane] = time.monotonic(), (place.read_bytes(), place.stat().st_mtime_ns)
        if not trial.doubted:
            place.write_bytes(change.applied_to(whole[lane][0]))
        (lane / LAST_TEST).write_text("")
        files = list(dict.fromkeys(map(_file, tests)))
        # Four times slower than measured is still no hang: other work may be going on.
        patience = 60 + 4 * sum(known.seconds[test] for test in tests)
        plugin = Choose({test: known.seconds[test] for test in tests}, lane / LAST_TEST)
        return lambda: _pytest(lane, ["-x", *files], plugin) if tests else NO_TESTS, patience

    def end(lane: Path, trial: Trial, code: int | None) -> list[Trial]:
        change = trial.change
        source, written = whole[lane]
        (lane / change.file).write_bytes(source)
        # as it was: what is compiled of it holds again
        os.utime(lane / change.file, ns=(written, written))
        how = {0: "survived", NO_TESTS: "survived", None: "hangs"}.get(code, "caught")
        last = (lane / LAST_TEST).read_text()
        if trial.doubted:
            if how != "survived":
                broken.add(trial.doubted)
                print(
                    "     left out from now on, since it does not pass without the change "
                    f"either: {trial.doubted}",
                    flush=True,
                )
                return [Trial(change)]
            sure.add(trial.doubted)
            how = "caught"
        elif how != "survived" and last and last not in sure:
            return [Trial(change, last)]
        if how == "survived":
            survivors[change] = f"{len(some(change))} of {len(known.of(change))} tests were tried"
        seconds = time.monotonic() - began[lane]
        print(
            f"{next(done):4d} {how:<8} {seconds:4.0f} s  {change.file}:{change.line}  "
            f"{change.before} -> {change.after}",
            flush=True,
        )
        return []

    _side_by_side([Trial(change) for change in chosen], lanes, begin, end)
    return survivors


def _warm() -> None:
    """Import the heavy packages once in the parent of all test processes; nothing of the tree."""
    for name in ("torch", "scipy.optimize", "sklearn.metrics"):
        importlib.import_module(name)


def _pytest(lane: Path, arguments: list[str], plugin: object, path: str = "") -> int:
    os.chdir(lane)
    paths = [str(lane / "src"), *([path] if path else [])]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    import equipoise

    if not Path(equipoise.__file__).is_relative_to(lane):
        raise RuntimeError(f"expected the copy in {lane}, got {equipoise.__file__}")
    return int(
        pytest.main(
            ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *arguments],
            plugins=[plugin],
        )
    )


def _side_by_side(
    jobs: Sequence[Any],
    lanes: Sequence[Path],
    begin: Callable[[Path, Any], tuple[Callable[[], int], float]],
    end: Callable[[Path, Any, int | None], list[Any]],
) -> None:
    """Run each job in a process of its own, one per lane at a time.

    Args:
        jobs: The jobs.
        lanes: Copies of the tree.
        begin: Prepares a lane; returns the work and its time limit.
        end: Called with the exit code, or None after the time limit; returns further jobs.
    """
    waiting, running = list(jobs), {}
    try:
        while waiting or running:
            for lane in [lane for lane in lanes if lane not in running][: len(waiting)]:
                job = waiting.pop(0)
                work, limit = begin(lane, job)
                running[lane] = (job, _forked(work, lane), time.monotonic() + limit)
            for lane, (job, pid, deadline) in list(running.items()):
                found, status = os.waitpid(pid, os.WNOHANG)
                late = not found and time.monotonic() > deadline
                if found or late:
                    _end(pid)
                    if late:
                        os.waitpid(pid, 0)
                    del running[lane]
                    waiting[:0] = end(
                        lane, job, None if late else os.waitstatus_to_exitcode(status)
                    )
            time.sleep(0.02)
    finally:
        for _, pid, _ in running.values():
            _end(pid)


def _forked(work: Callable[[], int], lane: Path) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        out = os.open(lane / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end(pid: int) -> None:
    """Kill a process and everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
