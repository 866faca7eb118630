"""Survival data: columns of times and events, their checks, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.data import DataConfig, federate, prepare_client
from equipoise.data.check import check_data
from equipoise.data.findings import DataErrors
from equipoise.data.pipeline import load
from tests.helpers.terminal import Terminal


def rows(seed: int, patients: int = 30) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "age": int(rng.integers(30, 90)),
            "stage": ("I", "II", "III")[int(rng.integers(3))],
            "time": int(rng.integers(1, 2000)),
            "event": int(rng.random() < 0.5),
        }
        for _ in range(patients)
    ]


def write(folder: Path, site: str, table: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [",".join(table[0])] + [",".join(str(cell) for cell in row.values()) for row in table]
    (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    for seed, site in enumerate(("bern", "genf")):
        write(tmp_path / "sites", site, rows(seed))
    return tmp_path / "sites"


def changed(folder: Path, column: str, value: Any, row: int = 4) -> Path:
    """Write the first site again with one cell changed."""
    table = rows(0)
    table[row][column] = value
    write(folder, "bern", table)
    return folder


def survival(path: Path, **settings: Any) -> DataConfig:
    return DataConfig(name=str(path), task="survival", **settings)


def test_times_and_events_become_one_target_and_no_inputs(hospitals: Path) -> None:
    data = load(survival(hospitals))
    assert [column.name for column in data.columns] == ["age", "stage"]
    assert (data.task.kind, data.task.outputs) == ("survival", 1)
    expected = [row["time"] if row["event"] else -row["time"] for row in rows(0)]
    assert data.y[:30].tolist() == expected
    assert data.schema is not None
    assert (data.schema.label, data.schema.event, data.schema.task) == ("time", "event", "survival")


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    table = [{"days": row.pop("time"), "died": row.pop("event"), **row} for row in rows(0)]
    write(tmp_path / "sites", "bern", table)
    write(tmp_path / "sites", "genf", table)
    data = load(survival(tmp_path / "sites", time="days", event="died"))
    assert [column.name for column in data.columns] == ["age", "stage"]


def test_times_are_shares_of_the_longest_training_time(hospitals: Path) -> None:
    federation = federate(survival(hospitals, intervals=12), 1)
    assert federation.task.outputs == 12 and federation.task.centre == 0
    train = federation.y[np.unique(federation.train.index)]
    assert float(train.abs().max()) == pytest.approx(1.0)
    assert federation.task.scale == max(
        abs(load(survival(hospitals)).y[federation.source[i]]) for i in federation.train.index
    )


def test_splits_are_stratified_by_the_event(tmp_path: Path) -> None:
    table = rows(0, 40)
    for number, row in enumerate(table):
        row["event"] = int(number % 4 == 0)
    write(tmp_path / "sites", "bern", table)
    write(tmp_path / "sites", "genf", table)
    federation = federate(survival(tmp_path / "sites", split=(0.5, 0.0, 0.5)), 1)
    for part in (federation.train, federation.test):
        for positions in part:
            assert int((~torch.signbit(federation.y[positions])).sum()) == 5


def test_a_patient_censored_at_time_0_stays_censored(hospitals: Path) -> None:
    table = rows(0)
    table[3] |= {"time": 0, "event": 0}
    table[4] |= {"time": 0, "event": 1}
    write(hospitals, "bern", table)
    federation = federate(survival(hospitals), 1)
    source = federation.source.tolist()
    signs = [bool(torch.signbit(federation.y[source.index(row)])) for row in (3, 4)]
    assert signs == [True, False]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (
            "time",
            -5,
            ["'time'", "times from 0 on", "1 row has a negative time", "bern.csv, line 6"],
        ),
        ("event", 2, ["'event'", "1 (event) or 0 (censored)", "bern.csv, line 6"]),
        ("event", "", ["'event'", "in every row", "bern.csv, line 6"]),
        ("time", "", ["'time'", "a time in every row", "bern.csv, line 6"]),
        ("event", "dead", ["'event'", "expected numbers", "'dead'", "bern.csv, line 6"]),
    ],
)
def test_cells_that_are_no_times_or_events_are_named(
    hospitals: Path, column: str, value: Any, words: list[str]
) -> None:
    with pytest.raises(DataErrors) as caught:
        load(survival(changed(hospitals, column, value)))
    assert len(caught.value.problems) == 1
    for word in words:
        assert word in str(caught.value)


def test_a_site_without_the_column_of_events_is_named(hospitals: Path) -> None:
    table = [{key: cell for key, cell in row.items() if key != "event"} for row in rows(1)]
    write(hospitals, "genf", table)
    with pytest.raises(
        DataErrors, match=r"site 'genf' \(genf.csv\) lacks the column 'event'.*data.event"
    ):
        load(survival(hospitals))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task": "survival", "label": "age"}, "label: expected none, since survival has `time`"),
        ({"task": "regression", "event": "died"}, "event: expected task: survival, got regression"),
        ({"task": "survival", "intervals": 1}, "greater than or equal to 2"),
    ],
)
def test_settings_that_contradict_the_task_are_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        DataConfig(name="sites", **settings)


def test_other_data_cannot_be_survival_data() -> None:
    with pytest.raises(ValueError, match="digits.*classification.*survival needs columns"):
        federate(DataConfig(name="digits", task="survival"), 1)
    with pytest.raises(ValueError, match=r"data.intervals: expected survival data, got digits"):
        federate(DataConfig(name="digits", intervals=5), 1)


def test_data_check_shows_events_and_times_and_saves_a_schema(
    hospitals: Path, tmp_path: Path, equipoise: Terminal
) -> None:
    saved = tmp_path / "schema.yaml"
    result = equipoise("data", "check", hospitals, "--set", "data.task=survival", "--save", saved)
    assert result.code == 0, result.err
    for words in ("survival", "events", "median time", "longest time"):
        assert words in result.out
    assert "event: event" in saved.read_text()
    again = load(DataConfig(name=str(hospitals), schema=str(saved)))
    assert again.task.kind == "survival"


def test_data_check_warns_of_a_site_without_events(hospitals: Path) -> None:
    write(hospitals, "bern", [{**row, "event": 0} for row in rows(0)])
    report = check_data(survival(hospitals))
    assert any("no event in the site 'bern'" in warning for warning in report.warnings)


def test_data_check_lists_problems_of_times(hospitals: Path) -> None:
    report = check_data(survival(changed(hospitals, "time", -5)))
    assert [problem for problem in report.problems if "negative time" in problem]


def test_a_site_prepares_its_rows_alone_as_with_the_others(hospitals: Path) -> None:
    schema = {
        "label": "time",
        "event": "event",
        "task": "survival",
        "centre": 0.0,
        "scale": 2000.0,
        "columns": [
            {"name": "age", "kind": "number", "gaps": False},
            {"name": "stage", "kind": "category", "categories": ["I", "II", "III"], "gaps": False},
        ],
    }
    config = DataConfig(name=str(hospitals), schema=schema, apart=True)
    both = federate(config, 3)
    alone = prepare_client(config, 3, "genf")
    assert (both.task.kind, both.task.scale) == ("survival", 2000.0)
    assert alone.task == both.task
    position = both.ids.index("genf")
    assert torch.equal(both.y[list(both.train)[position]], alone.y[next(iter(alone.train))])


def test_a_schema_of_survival_without_horizon_is_not_complete() -> None:
    schema = {
        "label": "time",
        "event": "event",
        "task": "survival",
        "columns": [{"name": "age", "kind": "number", "gaps": False}],
    }
    with pytest.raises(ValueError, match="the horizon as `scale`"):
        DataConfig(name="sites", schema=schema, apart=True)


def test_arrays_have_a_time_and_an_event_per_sample() -> None:
    y = np.array([[3.0, 1], [2.0, 0], [0.0, 0]])
    data = eq.from_arrays(np.eye(3, dtype=np.float32), y, kind="survival")
    assert data.task.kind == "survival" and data.y.tolist() == [3.0, -2.0, -0.0]
    sites = eq.from_sites({"a": (np.eye(3, dtype=np.float32), y)}, kind="survival")
    assert sites.y.tolist() == data.y.tolist()


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        ([[-1.0, 1], [2.0, 0]], "expected times from 0 on, got -1.0"),
        ([[1.0, 3], [2.0, 0]], "events of 1"),
        ([[1.0, 1, 2], [2.0, 0, 2]], "a time and an event for each of 2 samples"),
    ],
)
def test_arrays_of_another_form_are_refused(y: list[list[float]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        eq.from_arrays(np.zeros((2, 3)), np.array(y), kind="survival")
