"""What an actor is told at its start: the run, and where its data are."""

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
    """The run, and its data: in the object stores, or made by each node."""

    told: bytes
    data: Any  # the reference of the arrays, None: each node makes its own
    bytes: int  # of the arrays
    can_be_made: bool  # by a node, from its own data folder
    fingerprint: str

    def made_at(self, store: int) -> bool:
        """Whether a node with such an object store makes the data itself."""
        return self.data is None or self.bytes > store / 2


def job_spec_of(
    ray: Any, wanted: Experiment, job: Job, federation: Federation, roster: Roster, room: float
) -> tuple[JobSpec, Federation]:
    """The data go into the object store if there is room; this process, too, then reads them there and needs no copy of its own."""
    told, arrays = to_arrays(federation)
    bytes, data = sum(array.nbytes for array in arrays.values()), None
    if bytes <= room:
        data = ray.put(arrays)
        shared = ray.get(data)
        with warnings.catch_warnings():  # nobody writes to data
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            federation = replace(
                federation, x=torch.from_numpy(shared["x"]), y=torch.from_numpy(shared["y"])
            )
    path = [path or os.getcwd() for path in sys.path]
    words = json.dumps({"kind": kind(), "job": job.text(), "path": path, "data": told}).encode()
    return JobSpec(words, data, bytes, wanted.dataset is None, roster.fingerprint), federation
