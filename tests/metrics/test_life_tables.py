"""Life tables of risk groups, and the curves that follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.metrics import life_tables, survival


def drawn(seed: int = 0, patients: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    time = rng.integers(1, 100, patients) / 100
    return rng.normal(size=(patients, 1)), survival.signed_times(time, rng.random(patients) < 0.6)


def test_curves_equal_kaplan_meier_if_times_are_whole_per_cents() -> None:
    risks, targets = drawn()
    table = life_tables.counted(risks, targets)
    is_higher = risks[:, 0] > np.median(risks)
    for group, members in enumerate((~is_higher, is_higher)):
        times, values = life_tables.survival(table[group])
        expected = survival.kaplan_meier(targets[members]).at(times[:-1])[0]
        # A bin is drawn at its end, one per cent after its start.
        assert values[1:].tolist() == pytest.approx(expected.tolist())


def test_every_patient_is_counted_once() -> None:
    risks, targets = drawn(1)
    table = life_tables.counted(risks, targets)
    assert life_tables.total(table) == 60
    assert table[:, life_tables.EVENTS].sum() == (~np.signbit(targets)).sum()
    assert abs(int(table[0].sum()) - int(table[1].sum())) <= 1


def test_tables_of_sites_add_up() -> None:
    tables = [life_tables.counted(*drawn(seed)) for seed in range(3)]
    assert life_tables.total(life_tables.pooled(tables)) == 180


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((2, 2, 50), np.int64),
        np.zeros((2, 2, life_tables.BINS)),
        np.full((2, 2, life_tables.BINS), -1),
    ],
)
def test_a_damaged_table_is_recognised(table: np.ndarray) -> None:
    assert "expected counts" in str(life_tables.fault(table))
    assert life_tables.fault(life_tables.counted(*drawn())) is None
