"""The progress of a run: its round, the time left, and the clients that failed."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.runs import Run

RECENT = 10  # rounds whose mean length predicts the time left
NAMED = 8  # clients that failed and are named


@dataclass(frozen=True)
class Progress:
    """The progress of a run at one moment.

    Attributes:
        status: "running", "finished" or "stopped".
        words: The progress as a sentence.
        round: The last committed round.
        rounds: The rounds of the experiment.
        measured: True if there is a measurement to show.
        failed: Sentences about clients that failed, the latest first.
    """

    status: str
    words: str
    round: int
    rounds: int
    measured: bool
    failed: tuple[str, ...]

    @property
    def key(self) -> str:
        """A text that changes when the page of the run would change."""
        return f"{self.status}-{self.round}-{self.measured}"


def progress_of(run: Run) -> Progress:
    """Return the progress of an open run."""
    # The status is read first: a run that ends meanwhile is shown as running once more, never as
    # stopped.
    status = run.status
    last = run.last_round
    rounds = int(run.config["rounds"])
    return Progress(
        status,
        _sentence(run, status, last, rounds),
        last,
        rounds,
        run.is_measured,
        _failed(run),
    )


def _sentence(run: Run, status: str, last: int, rounds: int) -> str:
    position = f"round {last} of {rounds}"
    if status == "running":
        return f"in progress: {position}{_time_left(run, rounds - last)}"
    if status == "finished":
        return f"finished after {rounds} round{'' if rounds == 1 else 's'}"
    if status == "stopped":
        return f"stopped after {position}; {run.store.resume_command()} completes it"
    return f"{status}: {position}"


def _time_left(run: Run, rounds: int) -> str:
    """Return the time that some rounds may take, by the mean of the last ones.

    Not every round is measured, so the mean includes rounds with and without a measurement.
    """
    rows = run.store.rows(
        "select sum(seconds) as whole, count(distinct round) as count from seconds "
        "where round > (select max(round) from rounds) - ?",
        (RECENT,),
    )
    if not rows[0]["count"]:
        return ""
    return f", about {duration(rounds * rows[0]['whole'] / rows[0]['count'])} left"


def duration(seconds: float) -> str:
    """Return a time as text.

    >>> [duration(seconds) for seconds in (0.2, 42, 200, 9000, 200000)]
    ['1 s', '42 s', '3 min', '2 h 30 min', '2 days 8 h']
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} days {round(seconds / 3600) % 24} h"


def _failed(run: Run) -> tuple[str, ...]:
    """Return a sentence for every client that failed; of several failures the last one counts."""
    rows = run.store.rows(
        "select client, count(distinct round) as rounds, max(round) as last, reason from rejected "
        "group by client order by last desc, client limit ?",
        (NAMED + 1,),
    )
    sentences = []
    for row in rows[:NAMED]:
        when = "round" if row["rounds"] == 1 else f"{row['rounds']} rounds, last in round"
        sentences.append(
            f"client {row['client']} did not count in {when} {row['last']}: {row['reason']}"
        )
    if len(rows) > NAMED:
        total = run.store.rows("select count(distinct client) as count from rejected")[0]["count"]
        sentences.append(f"and {total - NAMED:,} more clients")
    return tuple(sentences)
