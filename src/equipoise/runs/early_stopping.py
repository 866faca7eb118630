"""Early stopping: end training when a validation metric no longer improves."""

from __future__ import annotations

import math

from equipoise.callbacks import Callback, RunStart
from equipoise.metrics.registry import find
from equipoise.runs.run import Run
from equipoise.storage.tables import RoundRecord


class EarlyStopping(Callback):
    """Stops a run when the mean of a metric over clients has not improved for some evaluations.

    Clients' validation data decide, never their test data. Only rounds that were evaluated count.
    A method that trains on validation data before the last round is refused.
    A resumed run continues as if it had not been interrupted, because the earlier values are read
    from the run.

    Example:
        >>> import equipoise as eq
        >>> stopping = eq.EarlyStopping(patience=5)
        >>> run = eq.run(eq.Experiment(), callbacks=stopping)  # doctest: +SKIP
    """

    def __init__(
        self,
        metric: str | None = None,
        patience: int = 10,
        min_delta: float = 0.0,
        model: str | None = None,
    ) -> None:
        """Set the criterion.

        Args:
            metric: The metric to follow; the loss by default.
            patience: Stop after this many evaluations without an improvement.
            min_delta: The smallest change that counts as an improvement.
            model: The served model to follow; the main model of the method by default.

        Raises:
            ValueError: If patience or min_delta are out of range, or the metric is unknown.
        """
        if patience < 1:
            raise ValueError(f"patience: expected at least 1, got {patience}")
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"min_delta: expected a number of at least 0, got {min_delta}")
        self.metric = find(metric or "loss")
        self.patience = patience
        self.min_delta = min_delta
        self.model = model
        self.best = math.inf
        self.since_best = 0

    def on_start(self, start: RunStart) -> bool:
        """Read the values of rounds that were computed before.

        Raises:
            ValueError: If clients train on validation data before the last round.
        """
        if start.held_out_rounds is not None and start.held_out_rounds < start.rounds:
            raise ValueError(
                "early stopping follows validation data, but this method trains on them after "
                f"round {start.held_out_rounds} of {start.rounds}; hold them out "
                "(method.fold=false of poise, method.validation=false of finetune), or train "
                "without early stopping"
            )
        self.best, self.since_best = math.inf, 0
        if start.first == 1:
            return False
        run = Run(start.folder)
        try:
            rows = run.columns(
                "round",
                "value",
                phase="received",
                split="validation",
                metric=self.metric.name,
                model=self.model or run.main_model,
            )
        finally:
            run.store.close()
        by_round: dict[int, list[float]] = {}
        for number, value in rows:
            by_round.setdefault(number, []).append(math.nan if value is None else value)
        stop = False
        for values in by_round.values():
            stop = self._take(values)
        return stop

    def on_round(self, record: RoundRecord) -> bool:
        """Compare the mean of this round with the best one.

        Raises:
            ValueError: If an evaluated round has no value of the metric on validation data.
        """
        if record.finish or not record.measurements:
            return False
        values = [
            value
            for _, model, phase, split, metric, value in record.measurements
            if (phase, split, metric) == ("received", "validation", self.metric.name)
            and model == (self.model or record.main)
        ]
        if not values:
            raise ValueError(
                f"early stopping: expected {self.metric.name} of model "
                f"{self.model or record.main!r} on validation data, but round {record.round} has "
                "none; name it in evaluation.metrics, keep validation in evaluation.splits, and "
                "give clients validation data (data.split)"
            )
        return self._take(values)

    def _take(self, values: list[float]) -> bool:
        mean = sum(values) / len(values)
        error = mean if self.metric.lower_is_better else -mean
        if error < self.best - self.min_delta:
            self.best, self.since_best = error, 0
        else:  # also if the mean is not a number
            self.since_best += 1
        return self.since_best >= self.patience
