"""How far a run is: its round, the time left, and the clients that failed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipoise.runs import Run

LOOKED_AT = 10  # rounds whose mean length tells how long the rest may take
NAMED = 8  # clients that failed and are named


@dataclass(frozen=True)
class Progress:
    """A run at this moment."""

    status: str  # going, finished, stopped
    words: str
    round: int
    rounds: int
    measured: bool  # whether there is something to show
    failed: tuple[str, ...]

    @property
    def key(self) -> str:
        """Changes when a page about this run would."""
        return f"{self.status}-{self.round}-{self.measured}"


def progress_of(folder: Path) -> Progress:
    run = Run(folder)
    try:
        # The status first: a run that ends in between is then shown as going once more, never as stopped.
        status = {"running": "going"}.get(run.status, run.status)
        done, rounds = run.last_round, int(run.config["rounds"])
        at = f"round {done} of {rounds}"
        words = {
            "going": f"going on: {at}{_left(run, rounds - done)}",
            "finished": f"finished after {rounds} round{'' if rounds == 1 else 's'}",
            "stopped": f"stopped after {at}; `equipoise resume {folder}` completes it",
        }.get(status, f"{status}: {at}")
        return Progress(status, words, done, rounds, bool(run.models()), _failed(run))
    finally:
        run.store.close()


def _left(run: Run, rounds: int) -> str:
    """The time that the rest may take, by the mean of the last rounds: measuring, which not every round does, is in it."""
    rows = run.store.rows(
        "select sum(seconds) as whole, count(distinct round) as count from seconds where round > (select max(round) from rounds) - ?",
        (LOOKED_AT,),
    )
    if not rows[0]["count"]:
        return ""
    return f", about {duration(rounds * rows[0]['whole'] / rows[0]['count'])} left"


def duration(seconds: float) -> str:
    """
    >>> [duration(seconds) for seconds in (0.2, 42, 200, 9000, 200000)]
    ['1 s', '42 s', '3 min', '2 h 30 min', '2 days 8 h']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes // 60
    return (
        f"{hours} h {minutes % 60} min"
        if hours < 48
        else f"{hours // 24} days {round(seconds / 3600) % 24} h"
    )


def _failed(run: Run) -> tuple[str, ...]:
    """Who failed, the latest first; of a client that did so often, its last reason."""
    rows = run.store.rows(
        """select client, count(distinct round) as rounds, max(round) as last, reason from rejected
           group by client order by last desc, client limit ?""",
        (NAMED + 1,),
    )
    found = []
    for row in rows[:NAMED]:
        when = "round" if row["rounds"] == 1 else f"{row['rounds']} rounds, last in round"
        found.append(
            f"client {row['client']} did not count in {when} {row['last']}: {row['reason']}"
        )
    if len(rows) > NAMED:
        whole = run.store.rows("select count(distinct client) as count from rejected")[0]["count"]
        found.append(f"and {whole - NAMED:,} more clients")
    return tuple(found)
