"""Which versions of a run's files are still needed."""

from __future__ import annotations

import sqlite3

_OLD = """from files as f where round < ? and exists
          (select 1 from files as g where g.kind = f.kind and g.key = f.key and g.round > f.round and g.round <= ?)"""


class Versions:
    """A round finds of each file the newest version at or before it; what no kept round would find goes."""

    def __init__(self) -> None:
        self.written: dict[
            int, list[tuple[str, str]]
        ] = {}  # round -> kind and key of every file that this process committed in it

    def supersede(self, db: sqlite3.Connection, oldest: int) -> list[str]:
        """Forget the versions that no round from the oldest kept one on would find, and name their files.

        What this process wrote in that round takes the place of earlier versions of the same: so a commit looks at as much as a round
        writes, however many clients the run has. All versions are looked at only where another process wrote that round.
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
