"""Time budget: end training when it has taken a number of seconds."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.callbacks import Callback, RunStart
from equipoise.experiment.sections import Budget
from equipoise.runs.run import Run
from equipoise.storage.tables import RoundRecord

TRAINING = ("clients", "aggregation")
"""The parts of a round that count: evaluation, transport and storage do not."""


class TimeBudget(Callback):
    """Ends a run after the round in which its training time reaches a budget.

    The time of earlier rounds is read from the run, so a resumed run ends as if it had not been
    interrupted. A budget in rounds, which `Run.replay` writes down, takes precedence over seconds.
    """

    def __init__(self, budget: Budget) -> None:
        """Set the budget.

        Args:
            budget: The budget of the experiment.
        """
        self.budget = budget
        self.spent = 0.0

    def on_start(self, start: RunStart) -> bool:
        """Add up the time of rounds that were computed before."""
        self.spent = 0.0
        if start.first == 1:
            return False
        run = Run(start.folder)
        try:
            rounds = run.rounds()
        finally:
            run.store.close()
        for record in rounds:
            self.spent += training_seconds(record["seconds"])
        return self._is_spent(start.first - 1)

    def on_round(self, record: RoundRecord) -> bool:
        """Add the time of this round."""
        if record.finish:
            return False
        self.spent += training_seconds(record.seconds)
        return self._is_spent(record.round)

    def _is_spent(self, last_round: int) -> bool:
        if self.budget.rounds is not None:
            return last_round >= self.budget.rounds
        return self.budget.seconds is not None and self.spent >= self.budget.seconds


def training_seconds(seconds: Mapping[str, float]) -> float:
    """Return the training time in the seconds of a round by phase."""
    return sum(seconds.get(phase, 0.0) for phase in TRAINING)
