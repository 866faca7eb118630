"""The studies of Poise: the page shows their results, and the test of the second form is ready to
run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import equipoise as eq
from equipoise import simulate
from equipoise.experiment import Experiment
from equipoise.experiment.specifications import method_from
from tests.helpers.images import NETWORKS
from tests.helpers.runs import settings, sites

STUDY = Path(__file__).parents[2] / "studies" / "poise"


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(STUDY))
    import frozen

    yield frozen
    # Names of the study's own, which others may have, too.
    for name in ("frozen", "study", "settings", "variants"):
        sys.modules.pop(name, None)


def test_the_page_is_what_the_command_makes_of_the_results(frozen: Any) -> None:
    text = frozen.PAGE.read_text()
    assert frozen.page() == text.partition(frozen.BEGIN)[2].partition(frozen.END)[0].strip()


def test_no_run_is_there_twice(frozen: Any) -> None:
    for name in ("frozen", "development", "robustness"):
        lines = (STUDY / f"{name}.jsonl").read_text().splitlines()
        assert len(lines) == len(frozen.known(STUDY / f"{name}.jsonl"))


def test_seeds_of_the_frozen_test_were_used_for_nothing_else(frozen: Any) -> None:
    used = {
        key[4]
        for name in ("development", "robustness")
        for key in frozen.known(STUDY / f"{name}.jsonl")
    }
    assert not used & set(frozen.SEEDS) and not set(frozen.TUNING_SEEDS) & set(frozen.SEEDS)


def test_every_run_of_the_frozen_test_is_a_valid_experiment(frozen: Any) -> None:
    import settings

    for group in frozen.GROUPS:
        assert len(group.seeds) >= 5
        for setting in group.settings:
            for label in group.methods:
                method = frozen.OWN.get(label)
                changes: dict[str, Any] = {}
                if method is None:
                    method, changes = frozen._published(label, frozen.PUBLISHED[label][2][0])
                if group.rounds is not None:
                    changes["rounds"] = group.rounds
                config = settings.config(setting, method, 20, group.model, **changes)
                assert Experiment(**config).rounds >= 15


def test_equal_cost_rivals_stand_with_and_without_validation_data(frozen: Any) -> None:
    for epochs, average in ((10, "none"), (27, "none"), (27, "second_half")):
        name = f"ft{'H' if average == 'second_half' else ''}{epochs}"
        plain, more = frozen.OWN[name], frozen.OWN[f"{name} + validation"]
        assert plain == more
        assert (plain["tune_epochs"], plain["tune_average"]) == (epochs, average)


@pytest.mark.parametrize("label", ["fedavg", "ft10", "ft27", "ftH27"])
def test_a_shared_run_has_the_bits_of_runs_of_their_own(
    label: str, frozen: Any, tmp_path: Path
) -> None:
    import variants

    data = sites({"ada": 60, "bo": 40}, {"ada": [0, 1], "bo": [1, 2]})
    experiments = [
        Experiment(
            **settings(method, models={"model": NETWORKS["cnn"]}, rounds=2),
            dataset=eq.from_sites(data),
        )
        for method in (variants.SeveralTunings(), method_from(frozen.OWN[label]))
    ]
    together, apart = (
        simulate.run(experiment, tmp_path / str(place))
        for place, experiment in enumerate(experiments)
    )
    model, share = frozen.SHARED[label]
    assert together.final("loss", model=model) == apart.final("loss")
    steps = [sum(row["steps"] for row in run.finish()) for run in (together, apart)]
    assert steps[0] * share == steps[1]


@pytest.mark.parametrize(("rounds", "epochs"), [(15, 27), (30, 40), (60, 68)])
def test_rivals_at_equal_steps_tune_for_longer_after_more_rounds(
    rounds: int, epochs: int, frozen: Any
) -> None:
    for label in (frozen.RIVAL, frozen.SAME_BASE):
        method = frozen.tuned_for(frozen.OWN[label], frozen.rival_epochs(rounds))
        assert method.get("finish", method)["tune_epochs"] == epochs
    assert (frozen._shared(frozen.RIVAL, rounds) is None) == (rounds != 15)


def test_shares_of_processes_are_disjoint_and_complete(frozen: Any) -> None:
    cells = frozen._tuning_cells()
    shares = [frozen._share_of(cells, share, 3) for share in range(3)]
    assert sorted(cell for share in shares for cell in share) == sorted(cells)


def test_nothing_is_tested_before_every_value_was_tuned(
    frozen: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys = [
        (frozen.TUNING, model, setting, f"{label} {name}={value}", seed)
        for model, seed, setting in frozen._tuning_cells()
        for label, (_, name, values) in frozen.PUBLISHED.items()
        for value in values
    ]
    rows = [
        dict(zip(("part", "model", "setting", "method", "seed"), key, strict=True)) for key in keys
    ]
    monkeypatch.setattr(frozen, "RESULTS", tmp_path / "frozen.jsonl")
    for count in (len(rows) - 1, len(rows)):
        frozen.RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
        assert frozen.is_tuned() == (count == len(rows))


def test_harm_is_counted_by_an_exact_test(frozen: Any) -> None:
    for lost, won in ((0, 5), (9, 1), (5, 5), (30, 12)):
        expected = binomtest(lost, lost + won, alternative="greater").pvalue
        assert frozen.mcnemar(lost, won) == pytest.approx(expected)
    assert frozen.mcnemar(0, 0) == 1.0


@pytest.fixture
def constructed(
    frozen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """The tables of constructed results, in which one method diverged with the last seed."""

    def tables(diverged: str) -> str:
        return tables_of(frozen, tmp_path, monkeypatch, diverged)

    return tables


def tables_of(frozen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diverged: str) -> str:
    group = replace(frozen.GROUPS[2], seeds=(20, 21), published=("ditto", "feddc"))
    draw = np.random.default_rng(0)
    lines = []
    for seed in group.seeds:
        for label in group.methods:
            accuracy = (0.7 + 0.1 * (label == frozen.POISE) + draw.normal(0, 0.001, 4)).tolist()
            record: dict[str, Any] = {
                "part": group.part, "model": group.model, "setting": "office", "method": label,
                "seed": seed, "accuracy": accuracy, "nll": [1.0] * 4, "lost": [1] * 4,
                "won": [9] * 4, "steps": 300 if label == frozen.POISE else 100, "bytes": [5, 5],
            }  # fmt: skip
            if label == diverged and seed == group.seeds[-1]:
                record = {**{key: record[key] for key in frozen_key()}, "diverged": "not finite"}
            lines.append(json.dumps(record))
    (tmp_path / "frozen.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(frozen, "RESULTS", tmp_path / "frozen.jsonl")
    monkeypatch.setattr(frozen, "GROUPS", (group,))
    text: str = frozen.tables()
    return text


def test_tables_of_the_frozen_test_show_steps_bytes_and_paired_differences(
    constructed: Callable[[str], str],
) -> None:
    text = constructed("feddc")
    row = next(line for line in text.splitlines() if line.startswith("| **poise**"))
    assert re.search(r"\| (79\.9|80\.0)\d \|", row)
    assert "| 0 of 8 | 0 |" in row and "| 3.00 | 1.00 |" in row
    assert "a run diverged: feddc" in text
    assert re.search(r"\| office \| \+(9|10)\.\d+ \[", text)


@pytest.mark.parametrize("method", ["standalone", "fedavg", "poise", "ftH-equal + validation"])
def test_tables_say_that_a_run_diverged_whichever_method_it_is(
    method: str, constructed: Callable[[str], str]
) -> None:
    text = constructed(method)
    assert f"Without a row, because a run diverged: {method}." in text
    primary = text.splitlines()[-1]
    assert ("a run diverged" in primary) == (method in ("poise", "ftH-equal + validation"))


def frozen_key() -> tuple[str, ...]:
    return ("part", "model", "setting", "method", "seed")
