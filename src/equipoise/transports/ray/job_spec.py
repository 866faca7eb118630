"""Specification of a run for the actors of a cluster."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

from equipoise.data import Federation
from equipoise.data.roster import Roster
from equipoise.experiment import Experiment
from equipoise.runtime.messages import Job
from equipoise.transports.ray.actor import kind
from equipoise.transports.workers.memory import to_arrays


@dataclass(frozen=True)
class JobSpec:
    """A run and its data.

    Attributes:
        message: The message to an actor, as JSON.
        data: The reference to the data in the object stores; None if each node makes its own.
        bytes: The size of the data.
        can_be_made: True if a node can make the data from its own data folder.
        fingerprint: The fingerprint of the data.
    """

    message: bytes
    data: Any
    bytes: int
    can_be_made: bool
    fingerprint: str

    def made_at(self, store: int) -> bool:
        """Return True if a node with an object store of so many bytes makes the data itself."""
        return self.data is None or self.bytes > store / 2


def job_spec_of(
    ray: Any, experiment: Experiment, job: Job, federation: Federation, roster: Roster, room: float
) -> tuple[JobSpec, Federation]:
    """Specify a run for actors, and put its data into the object store if there is room.

    Args:
        ray: The module, connected.
        experiment: The experiment.
        job: The message that opens client runtimes.
        federation: The data.
        roster: Names and sizes of the clients.
        room: Bytes of the object store that the data may use.

    Returns:
        The specification, and the data as this process shall hold them: in the object store, if
        they are there.
    """
    layout, arrays = to_arrays(federation)
    bytes = sum(array.nbytes for array in arrays.values())
    data = None
    if bytes <= room:
        data = ray.put(arrays)
        shared = ray.get(data)
        with warnings.catch_warnings():  # nobody writes to data
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            federation = replace(
                federation, x=torch.from_numpy(shared["x"]), y=torch.from_numpy(shared["y"])
            )
    path = [path or os.getcwd() for path in sys.path]
    message = {"kind": kind(), "job": job.text(), "path": path, "data": layout}
    can_be_made = experiment.dataset is None
    spec = JobSpec(json.dumps(message).encode(), data, bytes, can_be_made, roster.fingerprint)
    return spec, federation
