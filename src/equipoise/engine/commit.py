"""What a round leaves in the store, where a run that was stopped goes on, and why one cannot."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from equipoise.engine.cohort import Clients, RoundCohort
from equipoise.engine.reply_validation import not_finite
from equipoise.experiment import Participation
from equipoise.records import State
from equipoise.runtime.messages import StateRef, state_file, state_of
from equipoise.storage.checkpoint import load_server, save_server
from equipoise.storage.store import RunError, Store
from equipoise.training import Training


def restored(store: Store, clients: Clients) -> State:
    """The server's state after the last committed round; clients and server are as they were then."""
    saved, keeps = store.current("client"), clients.transport.keeps
    away = next((file.kept_at for file in saved.values() if file.kept_at != keeps), None)
    if away is not None:
        raise RunError(
            f"the states of the clients of {store.folder} lie at the {away}, and this transport keeps them at the {keeps}; "
            "resume the run over the transport that it was begun with"
        )
    clients.committed = {
        client: StateRef(state_of(file.path.name), file.bytes, file.digest)
        for client, file in saved.items()
    }
    joined = store.rows(
        "select joined from rounds where round between 1 and ? order by round",
        [clients.server.rounds],
    )
    clients.server.joined = [json.loads(row["joined"]) for row in joined]
    return load_server(store)


def commit(store: Store, state: State, cohort: RoundCohort, keep: int, last: bool) -> State:
    """Make a round part of the run: the record, the server's state, and the states of the clients that counted."""
    began, record, clients = time.perf_counter(), cohort.record, cohort.clients
    clients.committed |= cohort.provisional
    states = [
        (client, state_file(kept.name), kept.bytes, kept.digest)
        for client, kept in cohort.provisional.items()
    ]
    if clients.transport.keeps == "client":
        record.elsewhere += states
    else:
        record.files += [("client", client, file, digest) for client, file, _, digest in states]
    settle = save_server(store, state, record)
    record.seconds["store"] = time.perf_counter() - began
    store.commit(record, keep, "finished" if last else "running")
    store.remove(cohort.discarded)
    if record.round and not record.finish:
        clients.server.joined.append(record.joined)
    return settle()


def check_finite(state: State, training: Training, number: int) -> None:
    """Refuse a server's state with values that are not finite."""
    broken = not_finite(state)
    if broken is not None:
        raise RunError(
            f"round {number}: {broken} in the server's state holds values that are not finite, so the run ends here; the training "
            f"has diverged: lower training.lr (now {training.lr:g}) or set training.clip=1, and run anew"
        )


def given_up(
    store: Store,
    settings: Participation,
    number: int,
    attempt: int,
    rejected: Sequence[tuple[int, int, str, str]],
    reason: str,
) -> RunError:
    """Why a round was given up for good, and what to do."""
    refused = next((row for row in rejected if row[0] == attempt), None)
    again = f"then `equipoise resume {store.folder}`"
    if refused is None:
        advice = (
            f"lower participation.floor, raise participation.tries, or ask more clients; {again}"
        )
    else:
        diverged = "not finite" in refused[3]
        cure = (
            "the training seems to have diverged: lower training.lr or set training.clip=1, and run anew"
            if diverged
            else again
        )
        advice = f"the first reply that was refused in its last attempt, of client {refused[2]!r}: {refused[3]}; {cure}"
    return RunError(
        f"round {number} was given up {settings.tries} times: {reason}, {settings.floor} needed; {advice}"
    )
