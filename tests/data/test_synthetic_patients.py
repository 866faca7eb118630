"""Synthetic patients: the sizes of the paper's Table 7, states that differ, and a label that can be
learnt from histories and from nothing else.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.comparison.formats import explanation
from equipoise.data import DataConfig, federate, load
from equipoise.data.patients.codes import STATES
from equipoise.data.patients.histories import dataset_of
from equipoise.data.patients.records import Records, read_patients
from equipoise.data.patients.synthetic import (
    NOTE,
    SMALL,
    SMALL_SHARE,
    TABLE_7,
    records,
    write_patients,
)
from equipoise.runs.export import export


@pytest.fixture(scope="module")
def patients() -> Records:
    return records(share=SMALL_SHARE)


def counts_and_values(found: Records) -> tuple[np.ndarray, np.ndarray]:
    """Of each patient how often each code occurs, and the mean of its values.

    0, which is the mean of all, where there is none.
    """
    counts, totals, told = np.zeros((3, len(found), len(found.codes)))
    for patient in range(len(found)):
        for event in range(found.offsets[patient], found.offsets[patient + 1]):
            counts[patient, found.code[event]] += 1
            if not np.isnan(found.value[event]):
                totals[patient, found.code[event]] += found.value[event]
                told[patient, found.code[event]] += 1
    means = totals / np.where(told, told, np.nan)
    valued = told.any(0)
    means = means[:, valued]
    return counts, np.nan_to_num((means - np.nanmean(means, 0)) / np.nanstd(means, 0))


def auc(features: np.ndarray, label: np.ndarray) -> float:
    """Of a logistic regression on patients that it has not seen."""
    held_out = np.random.default_rng(0).random(len(label)) < 0.3
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=500)).fit(
        features[~held_out], label[~held_out]
    )
    return float(roc_auc_score(label[held_out], model.predict_proba(features[held_out])[:, 1]))


def test_the_label_can_be_learnt_from_plain_counts_and_values(patients: Records) -> None:
    counts, values = counts_and_values(patients)
    both = np.hstack([counts, values])
    assert 0.85 < auc(both, patients.label) < 0.93  # above: too easy to be true
    assert auc(counts, patients.label) > 0.8 and auc(values, patients.label) > 0.6
    assert 0.45 < auc(both, np.random.default_rng(1).permutation(patients.label)) < 0.55


def test_nothing_else_gives_the_label_away(patients: Records) -> None:
    ages = np.split(patients.age, patients.offsets[1:-1])
    seen = np.array([[one.max(), one.min(), one.mean(), np.median(one)] for one in ages])
    # the shares of positives of Table 7, no more
    assert auc(np.eye(50)[patients.site], patients.label) < 0.6
    assert auc(seen, patients.label) < 0.65
    assert auc(seen[:, :1] - seen[:, 1:], patients.label) < 0.55  # how long they were seen
    assert auc(patients.lengths[:, None], patients.label) < 0.55
    assert auc(np.eye(3)[patients.sex], patients.label) < 0.55


@pytest.mark.thorough
def test_no_single_code_gives_the_label_away(patients: Records) -> None:
    counts, values = counts_and_values(patients)
    for feature in np.hstack([counts, values]).T:
        assert 0.35 < roc_auc_score(patients.label, feature) < 0.65
    ill = patients.label == 1
    telling = np.flatnonzero(counts[ill].mean(0) > 2 * counts[~ill].mean(0))
    # most of the ill lack any one of them
    assert len(telling) >= 8 and ((counts[ill][:, telling] > 0).mean(0) < 0.5).all()


def test_the_set_is_as_it_is_shown() -> None:
    data = load(DataConfig(name=SMALL))
    shown = CliRunner().invoke(app, ["data", "show", SMALL]).output
    assert (
        f"counts:       {len(data.x):,}\n" in shown
        and f"shape:        {data.x.shape[1]}, 4\n" in shown
    )
    assert data.notes == (NOTE,)  # no event was left out, and every code that occurs has its number


@pytest.mark.thorough
def test_the_quick_variant_runs_from_the_command_line_with_the_latest_events(
    tmp_path: Path,
) -> None:
    file = Path(__file__).parents[2] / "experiments" / "fedakd-ehr-quick.yaml"
    smaller = ["rounds=1", "data.samples=600", "data.events=7", "model.hidden=4", "workers=0"]
    out = CliRunner().invoke(
        app,
        [
            "run",
            str(file),
            "--out",
            str(tmp_path / "run"),
            *(word for one in smaller for word in ("--set", one)),
        ],
    )
    assert out.exit_code == 0, out.output
    run = eq.Run(tmp_path / "run")
    assert any("only the latest 7 of each" in note for note in run.store.meta("facts")["notes"])
    run.store.close()


def test_the_latest_events_of_a_set_are_those_of_its_records() -> None:
    found = records(3, 0.002)
    whole = dataset_of(found, "x", events=50)
    config = DataConfig(name="x", partition="natural", events=6)
    federation = federate(config, 0, whole)
    expected = federate(
        DataConfig(name="x", partition="natural"), 0, dataset_of(found, "x", events=6)
    )
    assert (
        federation.x.shape[1:] == (7, 4)
        and torch.equal(federation.x, expected.x)
        and torch.equal(federation.y, expected.y)
    )
    with pytest.raises(
        ValueError, match="events: 6 is for patients' records and data set digits holds none"
    ):
        federate(DataConfig(name="digits", events=6), 0)


def test_synthetic_patients_have_the_sizes_of_table_7() -> None:
    assert len(TABLE_7) == 50 and set(TABLE_7) == set(STATES)
    assert (
        sum(n for n, _ in TABLE_7.values()) == 238_576
        and sum(p for _, p in TABLE_7.values()) == 89_515
    )
    found = records(1, 0.01)
    for place, name in enumerate(found.site_names):
        total, ill = TABLE_7[name]
        mine = found.label[found.site == place]
        assert len(mine) == max(4, round(total * 0.01)) and mine.sum() == max(
            1, round(len(mine) * ill / total)
        )
    whole = hashlib.blake2b(digest_size=8)
    for fact in (
        found.site,
        found.sex,
        found.state,
        found.label,
        found.offsets,
        found.code,
        100 * found.age,
        np.nan_to_num(10 * found.value, nan=-1),
    ):
        whole.update(np.round(fact).astype("<i8").tobytes())
    # a seed draws the same patients in every version: what studies say depends on them
    assert whole.hexdigest() == "bd89480a20856ae4"
    assert found.lengths.max() == 50 and found.age.min() >= 1 and found.age.max() <= 95.1
    again = records(1, 0.01)
    assert np.array_equal(found.code, again.code) and not np.array_equal(
        found.code[:1000], records(2, 0.01).code[:1000]
    )
    assert not any(
        code.endswith(("C25.9", "157.9")) for code in np.array(found.codes)[np.unique(found.code)]
    )


def test_synthetic_patients_as_files_are_the_same_patients(tmp_path: Path) -> None:
    made, read = records(4, 0.003), read_patients(write_patients(tmp_path / "all", 4, 0.003))
    assert np.array_equal(made.label, read.label) and np.array_equal(made.lengths, read.lengths)
    assert [made.codes[c] for c in made.code] == [read.codes[c] for c in read.code]
    apart = read_patients(write_patients(tmp_path / "sites", 4, 0.003, per_site=True))
    assert len(apart) == len(made) and apart.site_names == tuple(sorted(TABLE_7))
    for one in (read, apart):
        assert (
            one.site.tolist() == made.site.tolist()
            and one.sex.tolist() == made.sex.tolist()
            and one.state.tolist() == made.state.tolist()
        )
        assert np.allclose(one.age, made.age, atol=1e-5) and np.allclose(
            one.value, made.value, rtol=1e-3, equal_nan=True
        )
    assert (
        (tmp_path / "sites" / "AK" / "events.csv")
        .read_text()
        .startswith("patient,age,system,code,value\nsynthetic-0,")
    )


def test_states_differ_in_features() -> None:
    found = eq.audit({"dataset": dataset_of(records(5, 0.02), "synthetic_patients"), "workers": 0})
    assert "features" in found.verdict.kinds and "size" in found.verdict.kinds, found.text


@pytest.mark.thorough
def test_synthetic_patients_say_so_wherever_they_appear(tmp_path: Path) -> None:
    data = dataset_of(records(6, 0.001), "synthetic_patients")
    assert NOTE in data.notes
    shown = CliRunner().invoke(app, ["data", "show", "synthetic_patients"]).output
    assert "synthetic" in shown and "nobody's records" in shown
    run = eq.run(
        {
            "dataset": data,
            "data": {"name": "synthetic_patients"},
            "model": {"name": "gru", "hidden": 4, "embedding": 4},
            "rounds": 1,
            "workers": 0,
        },
        tmp_path / "run",
    )
    assert (
        NOTE in run.store.meta("facts")["notes"] and run.store.meta("data") == "synthetic_patients"
    )
    run.store.close()
    told = CliRunner().invoke(app, ["show", str(tmp_path / "run")], catch_exceptions=False).output
    assert "synthetic_patients" in told and "nobody's records" in told
    assert (
        CliRunner()
        .invoke(
            app,
            ["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")],
            catch_exceptions=False,
        )
        .exit_code
        == 0
    )
    page = (tmp_path / "page.html").read_text()
    assert "synthetic_patients" in page and "drawn at random" in page
    run = eq.Run(tmp_path / "run")
    card = export(run, "global", out=tmp_path / "model.safetensors")[1].read_text()
    run.store.close()
    assert "- data: synthetic_patients, partition auto" in card and f"- {NOTE}" in card
    config = {
        "dataset": data,
        "data": {"name": "synthetic_patients"},
        "model": {"name": "gru", "hidden": 4, "embedding": 4},
        "rounds": 1,
        "workers": 0,
    }
    table = eq.compare(config, ["fedavg"], seeds=[0], out=tmp_path / "table")
    assert any("are synthetic" in line for line in explanation(table))


def test_writing_synthetic_patients_from_the_command_line(tmp_path: Path) -> None:
    out = CliRunner().invoke(app, ["data", "synthesise", str(tmp_path / "new"), "--share", "0.001"])
    assert out.exit_code == 0 and "nobody's records" in out.output
    found = read_patients(tmp_path / "new")
    assert (
        len(found) >= 200
        and len(found.notes) == 1
        and "at or after the diagnosis" in found.notes[0]
    )  # nothing else had to be mended
    usual = write_patients(tmp_path / "usual") / "patients.csv"
    assert usual.read_text().count("\nsynthetic-") == sum(
        max(4, round(0.01 * n)) for n, _ in TABLE_7.values()
    )
    for share in (float("nan"), 0.0, 1.1):
        with pytest.raises(ValueError, match="share: expected a number above 0 and at most 1"):
            records(share=share)
