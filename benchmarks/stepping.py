"""Equipoise round by round, in this process, so that several runs can take turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from equipoise.data.samples import Samples
from equipoise.engine.rounds import Loop
from equipoise.experiment import Experiment
from equipoise.records import State
from equipoise.server import ServerData
from equipoise.session import configuration, job_of
from equipoise.simulate import Simulation
from equipoise.storage.store import RoundRecord, Store
from hearing import Hearing


def stepped(
    experiment: Experiment, folder: Path, hearing: Hearing | None = None
) -> Iterator[tuple[State, RoundRecord]]:
    """The state and the record of each round as it ends; store and checkpoint are on.

    What precedes round 1 is done before the first.
    """
    records: list[RoundRecord] = []
    callbacks = [Hearing(on_round=records.append), *([hearing] if hearing is not None else [])]
    with Simulation(experiment, callbacks) as simulation:
        roster, bench, method = simulation.open(job_of(experiment, "benchmark"), folder)
        federation = simulation.federation
        validation = (
            Samples.of(federation, federation.server_validation)
            if "validation" in method.needs
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
                simulation.monitor,
            )
            state = loop._start()
            yield state, RoundRecord(0, 0, [], [])
            for number in range(1, experiment.rounds + 1):
                state = loop._round(number, state)
                yield state, records[-1]
        finally:
            store.close()
