"""Worker process: executes requests for its parent until the parent is gone.

`processes.Pool` starts it with two inherited file descriptors: the socket to the parent, and the
shared memory that holds the data. Only plain records cross the socket.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def main(connection_number: int, data_number: int) -> None:
    """Execute requests until the parent is gone.

    Args:
        connection_number: The descriptor of the socket to the parent.
        data_number: The descriptor of the shared memory.
    """
    torch.set_num_threads(1)
    from equipoise.records import Record
    from equipoise.runtime import wire
    from equipoise.runtime.executor import ClientExecutor
    from equipoise.transports.workers.sockets import Receiver, Sender

    connection = socket.socket(fileno=connection_number)
    sender = Sender(connection)
    receiver = Receiver(connection)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        # This thread empties the socket while a client trains, and notices at once when the
        # parent dies.
        try:
            while True:
                inbox.put(receiver.receive())
        except (EOFError, OSError):
            os._exit(0)
        except BaseException:  # a damaged message: without this thread none would arrive any more
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    executor: ClientExecutor | None = None
    trees: dict[str, Any] = {}
    while True:
        message = inbox.get()
        if message["kind"] == "job":
            executor, refused = _prepare(message, data_number)
            # What exists now lasts as long as the job: the collector need not inspect it again.
            gc.freeze()
            groups = executor is not None and executor.trains_groups
            sender.send(
                Record(kind="ready", number=message["number"], refused=refused, groups=groups)
            )
            continue
        if message["kind"] == "trees":
            trees = dict(message["trees"])
            continue
        sender.take_back(message["returned"])
        assert executor is not None
        replies = executor.execute_group(_requests_in(message, trees))
        answer = {
            "kind": "replies",
            "replies": [{"reply": wire.to_wire(reply), "up": reply.up} for reply in replies],
            "returned": receiver.returned(),
        }
        sender.send(Record._trusted(answer))


def _requests_in(message: Any, trees: Mapping[str, Any]) -> list[Any]:
    """Return the requests of a message; a simulated fault ends this process."""
    from equipoise.runtime import wire

    requests = []
    for task in message["tasks"]:
        request = wire.request_of(task["request"], wire.resolved(task["down"], trees))
        if request.die:
            os.kill(os.getpid(), signal.SIGKILL)
        requests.append(request)
    return requests


def _prepare(message: Any, data_number: int) -> tuple[Any, str]:
    """Return the executor of a job, or the reason why it cannot be executed here."""
    from equipoise.runtime.executor import ClientExecutor
    from equipoise.runtime.messages import Job
    from equipoise.runtime.states import ServerStates
    from equipoise.transports.workers.memory import attach

    sys.path[:0] = [path for path in message["path"] if path not in sys.path]
    files = Path(message["files"])
    try:
        job = Job.of(message["job"])
        federation = attach(message["data"], data_number)
        executor = ClientExecutor(job, federation, ServerStates(files), disk=files)
    except ValueError as error:  # the user sees the same sentence as in process
        return None, str(error)
    return executor, ""
