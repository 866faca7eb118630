"""Check that finished runs were made with the data that the files of a user hold now."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from equipoise.comparison.plan import Cell
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Dataset
from equipoise.data.pipeline import federate_loaded, is_code, is_user_path, load_with_tables
from equipoise.data.roster import roster_of
from equipoise.experiment import Experiment
from equipoise.runs import Run
from equipoise.runs.baseline import has_old_fingerprint
from equipoise.storage.files import RunError
from equipoise.training.workbench import one_thread


def check_unchanged(finished: Sequence[Cell], folder: Path) -> None:
    """Refuse finished runs whose data have changed since.

    Otherwise their numbers would be averaged with those of new runs on other data.

    Args:
        finished: Runs that are finished.
        folder: The folder of the runs.

    Raises:
        RunError: The data of a run have changed. It names the run and what to do.
    """
    data = _Fingerprints()
    changed = []
    for cell in finished:
        if not _may_change(cell.experiment):
            continue
        stored = _stored_fingerprint(folder / cell.name)
        if stored is not None and data.of(cell.experiment) not in (None, stored):
            changed.append(cell)
    if not changed:
        return
    others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    raise RunError(
        f"{folder / changed[0].name}{others}: the data {changed[0].experiment.data.name} have "
        "changed since, and results of old and new data do not belong in one table; choose "
        "another folder with --out, delete the old runs, or restore the data"
    )


def _may_change(experiment: Experiment) -> bool:
    """Return True if the data are files or a function of the user.

    Data sets of the library do not change, and the names of runs follow from Python objects.
    """
    data = experiment.data
    if experiment.dataset is not None or data.synthetic is not None:
        return False
    return is_code(data) or is_user_path(data)


def _stored_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint of a run; None if this version would not compute the same one."""
    run = Run(folder)
    try:
        if has_old_fingerprint(run) or run.outdated is not None:
            return None
        return str(run.store.meta("fingerprint"))
    finally:
        run.store.close()


class _Fingerprints:
    """Fingerprints of the data as they are now; files are read once for all partitions."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str | None] = {}
        self._loaded: tuple[DataConfig, Dataset] | None = None  # the last one only: it may be large

    def of(self, experiment: Experiment) -> str | None:
        """Return the fingerprint that a run would have now; None if its data cannot be read.

        A missing run on them then fails with the reason.
        """
        key = (experiment.data.model_dump_json(), experiment.seed)
        if key not in self._known:
            try:
                with warnings.catch_warnings(), one_thread():
                    warnings.simplefilter("ignore")  # Each run reports them itself.
                    self._known[key] = self._computed(experiment)
            except Exception:  # A function of the user may raise anything.
                self._known[key] = None
        return self._known[key]

    def _computed(self, experiment: Experiment) -> str:
        source = experiment.data.model_copy(update={"partition": "iid", "clients": None})
        if self._loaded is None or self._loaded[0] != source:
            self._loaded = None
            self._loaded = (source, load_with_tables(source, experiment.imports).dataset)
        federation = federate_loaded(experiment.data, experiment.seed, self._loaded[1])
        return roster_of(federation).fingerprint
