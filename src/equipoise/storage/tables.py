"""The tables of a run's database, the additions of each format, and the record of a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# Format 1 (version 0.1) had neither digests nor the index of seconds. Format 5 has the tables of 4,
# and clients' files in sub-folders.
FORMAT = 7

TABLES = """
create table meta (key text primary key not null, value text not null);
create table rounds (round integer primary key not null, attempt integer not null,
                     cohort text not null, joined text not null,
                     bytes_down integer not null, bytes_up integer not null,
                     steps integer not null, skipped integer not null, virtual_seconds real);
create table measurements (round integer not null, client text not null, model text not null,
                           phase text not null, split text not null,
                           metric text not null, value real);
create table weights (round integer not null, client text not null, share real not null);
create table seconds (round integer not null, phase text not null, seconds real not null);
create table rejected (round integer not null, attempt integer not null,
                       exchange integer not null, client text not null, reason text not null);
create table files (kind text not null, key text not null, round integer not null,
                    name text not null, bytes integer not null, primary key (kind, key, round));
create index measured on measurements (round, client);
"""
# Format 2: digests of files, empty where unknown.
_SINCE_2 = """
alter table files add column digest text not null default '';
create index timed on seconds (round);
"""
# Format 3: the disk of a file, the server's or its client's.
_SINCE_3 = "alter table files add column kept_at text not null default 'server';\n"
# Format 4: histograms of scores at the end. For a class and a score in whole per cent: the samples
# of the class, all others, and those of both that the model assigned to the class.
_SINCE_4 = (
    "create table curves (round integer not null, client text not null, model text not null, "
    "split text not null, class integer not null, score integer not null, "
    "positives integer not null, negatives integer not null, "
    "found integer not null, mistaken integer not null);\n"
)
# Format 6: a score is the position of a bin. Before, there were 101 bins of scores rounded to whole
# per cent.
_SINCE_6 = "alter table curves add column bins integer not null default 101;\n"
# Format 7: histograms of scores of groups of samples, such as women at a site.
_SINCE_7 = (
    "create table group_curves (round integer not null, client text not null, "
    "model text not null, split text not null, attribute text not null, category text not null, "
    "class integer not null, score integer not null, positives integer not null, "
    "negatives integer not null, found integer not null, mistaken integer not null, "
    "bins integer not null);\n"
)
ADDED = {2: _SINCE_2, 3: _SINCE_3, 4: _SINCE_4, 6: _SINCE_6, 7: _SINCE_7}
CLIENT_PHASE = "client@"  # followed by a client: the part of the table `seconds` about its steps
BY_ROUND = (
    "rounds",
    "measurements",
    "curves",
    "group_curves",
    "weights",
    "seconds",
    "rejected",
    "files",
)


@dataclass
class RoundRecord:
    """All that one round adds to the store.

    Attributes:
        round: The number of the round.
        attempt: The number of attempts before this one, which were aborted.
        cohort: The clients that were chosen.
        joined: The clients whose replies counted.
        bytes_down: Bytes to the clients.
        bytes_up: Bytes to the server.
        steps: Training steps of all clients.
        skipped: Batches that were left out because they had one sample and the network cannot
            train on one.
        virtual_seconds: Simulated seconds of waiting, if delays are simulated.
        measurements: Values as (client, model, phase, split, metric, value).
        curves: Bins of histograms as (client, model, split, class, score, positives, negatives,
            found, mistaken, bins).
        group_curves: The same of groups as (client, model, split, column, group, class, ...).
        weights: Aggregation weights by client.
        seconds: Seconds by phase.
        client_seconds: Seconds of work by client.
        rejected: Replies that did not count as (attempt, exchange, client, reason).
        files: Files at the server as (kind, key, name, digest).
        elsewhere: States on the clients' disks as (client, name, bytes, digest).
        finish: True for the exchanges and the evaluation after the last round.
        main: The served model that the method is for.
    """

    round: int
    attempt: int
    cohort: list[str]
    joined: list[str]
    bytes_down: int = 0
    bytes_up: int = 0
    steps: int = 0
    skipped: int = 0
    virtual_seconds: float | None = None
    measurements: list[tuple[str, str, str, str, str, float]] = field(default_factory=list)
    curves: list[tuple[str, str, str, int, int, int, int, int, int, int]] = field(
        default_factory=list
    )
    group_curves: list[tuple[str | int, ...]] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    client_seconds: dict[str, float] = field(default_factory=dict)
    rejected: list[tuple[int, int, str, str]] = field(default_factory=list)
    files: list[tuple[str, str, str, str]] = field(default_factory=list)
    elsewhere: list[tuple[str, str, int, str]] = field(default_factory=list)
    finish: bool = False
    main: str = ""


class Stored(NamedTuple):
    """A file of a run."""

    path: Path  # its path if it is on the server's disk
    bytes: int
    digest: str
    kept_at: str  # whose disk has it: server or client
