"""The requests of one exchange on their way: which are still to be asked, which travel together, what became of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from equipoise.runtime.messages import Reply, Request


@dataclass
class Exchange:
    """Requests by their number."""

    pending: dict[int, Request]
    waiting: deque[int]  # large ones first
    weights: list[int]  # of the requests, for a fair share of work
    together: int  # at most so many in a call
    shared: dict[int, str]  # the trees that more than one request holds, see `wire`
    trees: Any  # and these, packed, or their reference
    alone: set[int] = field(default_factory=set)  # those that were lost once travel alone
    # the nodes on which a request lost its actor
    lost: dict[int, list[str]] = field(default_factory=dict)
    late: Counter[int] = field(default_factory=Counter)
    replies: dict[int, Reply] = field(default_factory=dict)
    slowest: float = 0.0

    def share(self, lanes: int) -> list[int]:
        """The next that travel together: shares of the work left that become smaller towards the end, so that no lane waits long for another.

        >>> going = Exchange({}, deque(range(12)), [5] * 12, 16, {}, None)
        >>> going.share(2), going.share(2), going.share(2), going.share(2)
        ([0, 1, 2], [3, 4], [5], [6])
        """
        share = sum(self.weights[number] for number in self.waiting) / (2 * lanes)
        taken = [self.waiting.popleft()]
        weight = self.weights[taken[0]]
        while (
            self.waiting
            and len(taken) < self.together
            and not self.alone & {taken[0], self.waiting[0]}
        ):
            weight += self.weights[self.waiting[0]]
            if weight > share:
                break
            taken.append(self.waiting.popleft())
        return taken

    def missing(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if number not in self.replies]
