"""Versions of a run's files that are still needed."""

from __future__ import annotations

import sqlite3

_OLD = """
    from files as f
    where round < ? and exists (
        select 1 from files as g
        where g.kind = f.kind and g.key = f.key and g.round > f.round and g.round <= ?
    )
"""


class Versions:
    """The versions of files that checkpoints need.

    A checkpoint needs the newest version of each file at or before its round.

    Attributes:
        written: Kind and key of the files that this process committed, by round.
    """

    def __init__(self) -> None:
        self.written: dict[int, list[tuple[str, str]]] = {}

    def supersede(self, db: sqlite3.Connection, oldest: int) -> list[str]:
        """Delete the rows of versions that no checkpoint needs any more.

        Files that this process wrote in the oldest round replace earlier versions, so a commit
        handles as many rows as a round writes, however many clients the run has. Only if another
        process wrote that round, all versions are compared.

        Args:
            db: The database, within a transaction.
            oldest: The oldest round whose checkpoint is kept.

        Returns:
            The names of the files.
        """
        if oldest not in self.written:
            gone = [row[0] for row in db.execute(f"select name {_OLD}", (oldest, oldest))]
            db.execute(
                f"delete from files where rowid in (select f.rowid {_OLD})", (oldest, oldest)
            )
            return gone
        gone = []
        for kind, key in self.written.pop(oldest):
            older = (kind, key, oldest)
            gone += [
                row[0]
                for row in db.execute(
                    "select name from files where kind = ? and key = ? and round < ?", older
                )
            ]
            db.execute("delete from files where kind = ? and key = ? and round < ?", older)
        return gone
