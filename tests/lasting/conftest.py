from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from equipoise.transports.workers import processes
from tests.helpers.runs import environment


@pytest.fixture(autouse=True)
def children_are_forked() -> None:
    """Spare every worker the import of torch, as the command line does."""
    processes.allow_fork()


@pytest.fixture
def new_processes(children_are_forked: None) -> Iterator[None]:
    """Start workers anew, as in a notebook."""
    processes.allow_fork(False)
    yield
    processes.allow_fork()


@pytest.fixture(scope="module")
def play() -> Iterator[Callable[..., dict[str, Any]]]:
    """Play or resume a run in a child process that may be killed.

    Returns whether it was killed, and its output.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.zygote"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(**job: Any) -> dict[str, Any]:
            print(json.dumps(job), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()
