"""A worker process: performs requests for its parent until the parent is gone.

Started by `equipoise.processes` with two inherited file descriptors: the socket to the parent and the shared memory that holds the data.
Nothing but plain records ever crosses the socket.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import numpy as np
import torch


def main(connection_number: int, data_number: int) -> None:
    torch.set_num_threads(1)
    from equipoise.experiment import experiment
    from equipoise.records import Record
    from equipoise.simulate import prepare
    from equipoise.transports import wire
    from equipoise.transports.exchange import perform_safely

    connection = socket.socket(fileno=connection_number)
    sender, receiver = wire.Sender(connection), wire.Receiver(connection)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        # A thread of its own: it empties the socket while a client trains, and sees at once when the parent dies.
        try:
            while True:
                inbox.put(receiver.receive())
        except (EOFError, OSError):
            os._exit(0)
        except BaseException:  # a damaged message: without this thread no other would ever arrive
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    job = json.loads(inbox.get()["job"])
    sys.path[:0] = [path for path in job["path"] if path not in sys.path]
    federation = attach(job, data_number)
    bench, method = prepare(experiment(job["experiment"]), federation.task, federation)
    sender.send(Record(kind="ready"))
    trees: dict[str, Any] = {}
    while True:
        message = inbox.get()
        if message["kind"] == "trees":
            trees = dict(message["trees"])
            continue
        sender.take_back(message["returned"])
        down = wire.resolved(message["down"], trees)
        request = wire.request_of(message, down)
        if request.die:
            os.kill(os.getpid(), signal.SIGKILL)
        sender.send(wire.answer(message["number"], perform_safely(bench, method, request), receiver.returned()))


def attach(job: dict[str, Any], data_number: int) -> Any:
    """The federation, over memory that all workers share."""
    from equipoise.data import Federation, Parts
    from equipoise.task import Task

    # Copy on write: a stray write stays in this process.
    memory = mmap.mmap(data_number, job["bytes"], access=mmap.ACCESS_COPY)
    arrays = {
        name: np.frombuffer(
            memory, dtype=facts["dtype"], count=int(np.prod(facts["shape"], dtype=np.int64)), offset=facts["offset"]
        ).reshape(facts["shape"])
        for name, facts in job["arrays"].items()
    }
    train, validation, test = (Parts(arrays[f"{part} index"], arrays[f"{part} offsets"]) for part in ("train", "validation", "test"))
    task = Task(job["task"]["kind"], tuple(job["task"]["shape"]), job["task"]["outputs"], tuple(job["task"]["class_names"]))
    return Federation(
        name=job["name"], task=task, x=torch.from_numpy(arrays["x"]), y=torch.from_numpy(arrays["y"]), ids=tuple(job["ids"]),
        train=train, validation=validation, test=test,
        shared_test=arrays["shared test"], augment=tuple(job["augment"]),
    )  # fmt: skip
