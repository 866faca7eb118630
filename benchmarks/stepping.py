"""Equipoise round by round, in this process, so that several runs can take turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from equipoise.data.samples import Samples
from equipoise.engine.rounds import Loop
from equipoise.experiment import Experiment
from equipoise.records import State
from equipoise.server import ServerData
from equipoise.simulate import Simulation, configuration, job_of
from equipoise.storage.store import RoundRecord, Store
from equipoise.transports.base import Watcher


def stepped(
    experiment: Experiment, folder: Path, watcher: Watcher | None = None
) -> Iterator[tuple[State, RoundRecord]]:
    """The state and the record of each round as it ends; store and checkpoint are on. What precedes round 1 is done before the first."""
    records: list[RoundRecord] = []
    told = watcher or Watcher()
    on_round, told.on_round = (
        told.on_round,
        lambda record: (records.append(record), on_round(record))[1],
    )
    with Simulation(experiment, told) as simulation:
        roster, bench, method = simulation.open(job_of(experiment, "benchmark"), folder)
        federation = simulation.federation
        validation = (
            Samples.of(federation, federation.server_validation)
            if method.needs_validation
            else None
        )
        store = Store.create(folder, configuration(experiment), {})
        try:
            loop = Loop(
                experiment,
                method,
                bench,
                roster,
                simulation.transport,
                store,
                ServerData(validation),
                told,
            )
            state = loop._start()
            yield state, RoundRecord(0, 0, [], [])
            for number in range(1, experiment.rounds + 1):
                state = loop._round(number, state)
                yield state, records[-1]
        finally:
            store.close()
