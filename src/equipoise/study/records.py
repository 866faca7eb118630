"""Results of a study in a compact file, from which every table and page is made.

Each line is the result of one served model in one run, as JSON. A line is written when its run has
finished; the folder of the run is not needed afterwards.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equipoise.comparison.plan import VALIDATION
from equipoise.runs.result import ModelResult, RunResult, for_each_client
from equipoise.runs.run import Run
from equipoise.storage.store import RunError
from equipoise.study.definition import AGAINST_ALONE, LEVELS, Seed
from equipoise.study.plan import PlannedRun
from equipoise.validation.settings import plain_reason

DIGITS = 6
MOST_SAMPLES = 10**12  # of one client; test sets are drawn anew as 64-bit integers
Number = Annotated[float, Field(allow_inf_nan=False)] | None
TestSize = Annotated[int, Field(ge=0, le=MOST_SAMPLES)]
Test = Literal["", "local", "drawn", "global", "site"]
MOST_ROUNDS = 10**7
Round = Annotated[int, Field(ge=0, le=MOST_ROUNDS)]


class Record(BaseModel):
    """The result of one served model in one run.

    Attributes:
        run: Name of the run, which follows from all its settings.
        method: The method's key in the study.
        condition: Name of the condition.
        seed: The seed.
        model: Name of the served model.
        main: True for the model that the method marks as its main one.
        metric: The metric of `values`.
        values: Client -> value at the end.
        test_sizes: Client -> number of test samples.
        groups: Client -> domain of its data, if there are domains.
        test: Whose samples the clients were tested on: their own ("local"), or those of one test
            set for all, drawn with each seed ("drawn") or official ("global"), or of the official
            test part of their domain ("site"). Empty in older records.
        rounds: Rounds of the learning curve.
        means: Mean over clients in these rounds.
        deviations: Standard deviation over clients in these rounds; empty in older records.
        final_phase: True if the last point of the curve follows the last round.
        after_local: Client -> value of its model right after local training, where all clients
            share one model and one test set.
        validation: Mean over clients on validation data at the end; None without such data.
        contributions: Name, such as "reputation" -> client -> last value that the method logged.
        cost: Megabytes, seconds and other numbers of the run.
        baseline: Name of the run of training alone; empty without one.
        version: Version of Equipoise that ran it.
        created: Time at which the run began.
        environment: Versions of packages and kind of processor.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    method: str
    condition: str
    seed: Seed
    model: str
    main: bool
    metric: str
    values: dict[str, Number]
    test_sizes: dict[str, TestSize]
    groups: dict[str, str] = {}
    test: Test = ""
    rounds: list[Round] = []
    means: list[Number] = []
    deviations: list[Number] = []
    final_phase: bool = False
    after_local: dict[str, Number] = {}
    validation: Number = None
    contributions: dict[str, dict[str, Number]] = {}
    cost: dict[str, Number] = {}
    baseline: str = ""
    version: str = ""
    created: str = ""
    environment: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        missing = [client for client in self.values if client not in self.test_sizes]
        if missing:
            raise ValueError(f"test_sizes: expected every client, found no {missing[0]!r}")
        for name, numbers in (("means", self.means), ("deviations", self.deviations)):
            # Older records have no deviations.
            if len(numbers) != len(self.rounds) and (numbers or name == "means"):
                raise ValueError(
                    f"{name}: expected as many numbers as rounds ({len(self.rounds)}), "
                    f"found {len(numbers)}"
                )
        if any(later <= earlier for earlier, later in itertools.pairwise(self.rounds)):
            raise ValueError("rounds: expected rising numbers")
        for name in self.cost:
            if name in (*LEVELS, *AGAINST_ALONE):
                raise ValueError(f"cost: expected no {name!r}, which follows from `values`")
        if self.metric == "accuracy":
            self._check_accuracies()
        return self

    def _check_accuracies(self) -> None:
        for client, value in self.values.items():
            if value is not None and not self.test_sizes[client]:
                raise ValueError(f"test_sizes: expected test samples of client {client!r}, found 0")
        accuracies = {
            "values": list(self.values.values()),
            "means": self.means,
            "after_local": list(self.after_local.values()),
            "validation": [self.validation],
        }
        for name, numbers in accuracies.items():
            for number in numbers:
                if number is not None and not 0 <= number <= 1:
                    raise ValueError(f"{name}: expected accuracies in [0, 1], found {number}")


def records_of(planned: PlannedRun, run: Run, result: RunResult) -> list[Record]:
    """Return the records of a finished run, one per served model.

    Args:
        planned: The run in the study.
        run: The run, open.
        result: Its result.
    """
    return [_record(planned, run, result, model) for model in result.models.values()]


def _record(planned: PlannedRun, run: Run, result: RunResult, model: ModelResult) -> Record:
    metric = result.metric(model=model.name)
    sizes = {client: metric.test_sizes.get(client, 0) for client in metric.values}
    contributions = {name: _numbers(values) for name, values in result.contributions.items()}
    return Record(
        run=planned.cell.name,
        method=planned.method,
        condition=planned.condition,
        seed=planned.seed,
        model=model.name,
        main=model.name == result.main_model,
        metric=metric.metric.name,
        values=_numbers(metric.values),
        test_sizes=sizes,
        groups={client: group for client, group in result.groups.items() if client in sizes},
        test=_test(result),
        rounds=list(metric.curve.rounds),
        means=[_number(mean) for mean in metric.curve.means],
        deviations=[_number(deviation) for deviation in metric.curve.deviations],
        final_phase=metric.curve.final_phase,
        after_local=_numbers(metric.after_local),
        validation=_validation_mean(run, metric.metric.name, model.name),
        contributions=contributions,
        cost=_numbers({**result.cost, **_by_group(model)}),
        baseline=planned.baseline,
        version=result.version,
        created=result.created,
        environment=dict(result.environment or {}),
    )


def copy_for(planned: PlannedRun, record: Record) -> Record:
    """Return the result of a run as the result of the same run in another study.

    Args:
        planned: The run in the other study.
        record: Its result in this one.
    """
    names = {"method": planned.method, "condition": planned.condition, "seed": planned.seed}
    return record.model_copy(update={**names, "baseline": planned.baseline})


def _test(result: RunResult) -> Test:
    """Return whose samples the clients of a run were tested on; empty if the run does not tell."""
    known: Test
    for known in get_args(Test):
        if result.facts.get("test") == known:
            return known
    return ""


def _by_group(model: ModelResult) -> dict[str, float]:
    """Return the numbers by group of samples; none without groups."""
    return {} if model.groups is None else model.groups.aggregates


def _validation_mean(run: Run, metric: str, model: str) -> float | None:
    values = for_each_client(run, run.final(metric, model, split=VALIDATION)).values()
    return _number(sum(values) / len(values)) if values else None


def _numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in values.items()}


def _number(value: float) -> float | None:
    """Return a number that JSON knows: None stands for NaN and infinity."""
    finite = value == value and abs(value) != float("inf")
    return round(float(value), DIGITS) if finite else None


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Add lines to the file of results; they are on disk when this returns."""
    lines = "".join(record.model_dump_json(exclude_defaults=True) + "\n" for record in records)
    if not lines:
        return  # An empty file would look like a study that was run.
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """Return the records in a file; none if it does not exist.

    The last line may be cut off by a kill: all lines of its run are left out, and the run counts as
    missing.

    Raises:
        RunError: If another line is damaged, or two lines contradict each other, naming file and
            line.
    """
    if not path.exists():
        return []
    records = []
    first: dict[tuple[str, str, str, str], tuple[int, Record]] = {}
    for number, line in enumerate(_complete_lines(path.read_bytes()), 1):
        record = _parsed(line, f"{path}, line {number}")
        key = (record.run, record.method, record.condition, record.model)
        earlier, known = first.setdefault(key, (number, record))
        if record.values != known.values:
            raise RunError(
                f"{path}, line {number}: expected one result of model {record.model!r} in run "
                f"{record.run}, found another one in line {earlier}; remove the wrong line"
            )
        records.append(record)
    return records


def drop_partial_run(path: Path) -> None:
    """Remove a last line that a kill cut off, so that further lines can be added.

    The other lines of its run are removed, too: a run with some lines would count as finished. A
    complete last line without a line break, as some editors leave it, gets one.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    complete = sum(len(line) + 1 for line in _complete_lines(content))
    if complete < len(content):
        with path.open("r+b") as file:
            file.truncate(complete)
    elif complete > len(content):
        with path.open("ab") as file:
            file.write(b"\n")


def _complete_lines(content: bytes) -> list[bytes]:
    """Return the lines of all runs that were written completely."""
    *lines, partial = content.split(b"\n")
    if not partial:
        return lines
    if _is_complete(partial):
        return [*lines, partial]
    if not lines:
        return lines
    last_run = _run_of(lines[-1])
    if not last_run.startswith(partial[: len(last_run)]):
        return lines  # what is left of the partial line belongs to another run
    while lines and _run_of(lines[-1]) == last_run:
        lines.pop()
    return lines


def _is_complete(line: bytes) -> bool:
    """Return True if a line without a line break is a complete result."""
    try:
        Record(**json.loads(line.decode("utf-8")))
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _run_of(line: bytes) -> bytes:
    """Return the beginning of a line: name of the run, method, condition and seed."""
    return line.partition(b',"model":')[0]


def _parsed(line: bytes, location: str) -> Record:
    try:
        return Record(**json.loads(line.decode("utf-8")))
    except ValidationError as error:
        detail = error.errors()[0]
        is_unknown = detail["type"] == "extra_forbidden"
        message = "unknown key" if is_unknown else plain_reason(detail["msg"])
        parts = [*map(str, detail["loc"]), message]
        reason = f" ({': '.join(parts)})"
    except (ValueError, TypeError, RecursionError):
        reason = ""
    raise RunError(
        f"{location}: expected the result of a run{reason}; to run it again, remove all its "
        "lines, in other files of this folder, too, and its folder among the runs"
    )
