"""Commit of a round to the store, and the state from which a run continues."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from equipoise.engine.cohort import Clients, RoundCohort
from equipoise.engine.reply_validation import not_finite
from equipoise.experiment import Participation
from equipoise.records import State
from equipoise.runtime.messages import StateRef, round_of, state_file, state_of
from equipoise.storage.checkpoint import load_server, save_server
from equipoise.storage.store import RunError, RunStopped, Store
from equipoise.training import Training


def restored(store: Store, clients: Clients) -> State:
    """Restore server and clients as they were after the last committed round.

    Args:
        store: The store of the run.
        clients: The clients, which are changed.

    Returns:
        The server's state.

    Raises:
        RunError: If the states of clients lie where this transport does not look for them.
    """
    saved = store.current("client")
    keeps = clients.transport.keeps
    for file in saved.values():
        if file.kept_at != keeps:
            raise RunError(
                f"the states of the clients of {store.folder} lie at the {file.kept_at}, and this "
                f"transport keeps them at the {keeps}; resume the run over the transport that it "
                "was begun with"
            )
    clients.committed = {
        client: StateRef(state_of(file.path.name), file.bytes, file.digest)
        for client, file in saved.items()
    }
    for client, number in _restarts(store, clients):
        state = clients.committed.get(client)
        if state is not None and round_of(state.name) < number:
            del clients.committed[client]
    joined = store.rows(
        "select joined from rounds where round between 1 and ? order by round",
        [clients.server.rounds],
    )
    clients.server.joined = [json.loads(row["joined"]) for row in joined]
    return load_server(store)


def _restarts(store: Store, clients: Clients) -> list[tuple[str, int]]:
    """Return the clients that have begun afresh, with the round: by order, or by a script."""
    restarts = store.restarted()
    for number in range(1, store.last_round() + 1):
        restarts += [(client, number) for client in clients.faults.restarts(number)]
    return restarts


def commit(store: Store, state: State, cohort: RoundCohort, keep: int, last: bool) -> State:
    """Make a round part of the run: its record, the server's state and the clients' states.

    Args:
        store: The store of the run.
        state: The server's state after the round.
        cohort: The cohort of the round.
        keep: The number of checkpoints to keep.
        last: True if the run is finished with this round.

    Returns:
        The server's state, with values by client in files.
    """
    began = time.perf_counter()
    record = cohort.record
    clients = cohort.clients
    clients.committed |= cohort.provisional
    for client, reached in cohort.provisional.items():
        file = state_file(reached.name)
        if clients.transport.keeps == "client":
            record.elsewhere.append((client, file, reached.bytes, reached.digest))
        else:
            record.files.append(("client", client, file, reached.digest))
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
            f"round {number}: {broken} in the server's state holds values that are not finite, so "
            "the run ends here; the training has diverged: lower training.lr "
            f"(now {training.lr:g}) or set training.clip=1, and run again"
        )


def round_failed(
    store: Store,
    settings: Participation,
    number: int,
    attempt: int,
    rejected: Sequence[tuple[int, int, str, str]],
    reason: str,
) -> RunError:
    """Return the error for a round whose attempts have all failed.

    Args:
        store: The store of the run.
        settings: The section of the experiment.
        number: The round.
        attempt: Its last attempt.
        rejected: The replies that did not count: attempt, exchange, client, reason.
        reason: The reason why the last attempt was aborted.
    """
    kind: type[RunError] = RunStopped
    remedy = f"then {store.resume_command()}"
    advice = f"lower participation.floor, raise participation.tries, or ask more clients; {remedy}"
    for refused_in, _, client, refusal in rejected:
        if refused_in == attempt:
            if "not finite" in refusal:
                kind = RunError  # the same numbers would come again
                remedy = (
                    "the training seems to have diverged: lower training.lr "
                    "or set training.clip=1, and run again"
                )
            advice = (
                "the first reply that was refused in its last attempt, "
                f"of client {client!r}: {refusal}; {remedy}"
            )
            break
    return kind(
        f"round {number} was given up {settings.tries} times: {reason}, "
        f"{settings.floor} needed; {advice}"
    )
