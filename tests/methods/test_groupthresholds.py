"""Thresholds by group: chosen as by a search over all pairs, applied in evaluation and prediction,
and on top of other methods.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data import federate
from equipoise.records import read
from equipoise.runs import Run, read_result
from equipoise.runs.groups import CellKey
from tests.helpers.group_sites import columns, experiment, finished, write_sites

SPLIT = {"split": (0.4, 0.4, 0.2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sites = {"east": columns("east", 260, 0.4), "north": columns("north", 200, 0.5)}
    return write_sites(tmp_path_factory.mktemp("hospitals"), sites)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Run:
    out = tmp_path_factory.mktemp("runs") / "run"
    return finished(out, folder, method="groupthresholds", data=SPLIT)


def state_of(run: Run, client: str) -> dict[str, object]:
    path, *_ = run.store.current("client", client)[client]
    return dict(read(path, lazy=False))


def test_thresholds_are_the_most_accurate_ones_with_equal_shares(run: Run, folder: Path) -> None:
    section = eq.DataConfig(**experiment(folder, data=dict(SPLIT))["data"])
    federation = federate(section, run.config["seed"])
    assert federation.groups is not None
    for number, client in enumerate(federation.ids):
        rows = federation.validation[number]
        with torch.no_grad():
            logits = run.model("global", client)(federation.x[rows]).double().numpy()
        score, sick = logits[:, 1] - logits[:, 0], federation.y[rows].numpy() == 1
        woman = np.array(federation.groups.rows(rows).names_of("sex")) == "f"
        own = [np.sort(score[sick & woman])[::-1], np.sort(score[sick & ~woman])[::-1]]
        best = -1
        for share in {k / len(s) for s in own for k in range(len(s) + 1)}:
            cuts = []
            for s in own:
                padded = [s[0] + 2, *s, s[-1] - 2]  # beyond all scores by 1
                count = int(share * len(s) + 0.5)
                cuts.append((padded[count] + padded[count + 1]) / 2)
            called = np.where(woman, score > cuts[0], score > cuts[1])
            best = max(best, int((called == sick).sum()))
        state = state_of(run, client)
        assert state["groups"] == ["f", "m"] and state["column"] == "sex"
        offset = dict(zip(state["groups"], state["offsets"][:, 1].tolist(), strict=True))  # type: ignore[index, call-overload]
        chosen = score + np.where(woman, offset["f"], offset["m"]) > 0
        rates = [chosen[sick & woman].mean(), chosen[sick & ~woman].mean()]
        assert abs(rates[0] - rates[1]) <= 0.5 / len(own[0]) + 0.5 / len(own[1]) + 1e-9
        assert int((chosen == sick).sum()) == best


def test_the_served_model_is_evaluated_with_its_offsets(run: Run, folder: Path) -> None:
    section = eq.DataConfig(**experiment(folder, data=dict(SPLIT))["data"])
    federation = federate(section, run.config["seed"])
    report = read_result(run).models["personal"].groups
    assert report is not None and federation.groups is not None
    for number, client in enumerate(federation.ids):
        rows = federation.test[number]
        state = state_of(run, client)
        names = federation.groups.rows(rows).names_of("sex")
        offsets = dict(zip(state["groups"], state["offsets"], strict=True))  # type: ignore[call-overload]
        with torch.no_grad():
            logits = run.model("global", client)(federation.x[rows])
        shifted = logits + torch.stack([offsets[name] for name in names])
        right = (shifted.argmax(1) == federation.y[rows]).numpy()
        for group in ("f", "m"):
            own = np.array(names) == group
            cell = report.cells[CellKey(client, "sex", group)]
            assert cell.values["accuracy"].value == pytest.approx(right[own].mean())


def test_predict_reads_the_group_of_new_rows(run: Run, folder: Path, tmp_path: Path) -> None:
    arguments = ["predict", str(run.folder), str(folder / "east.csv"), "--client", "east"]
    outputs = {}
    for model in ("personal", "global"):
        out = tmp_path / f"{model}.csv"
        done = CliRunner().invoke(app, [*arguments, "--model", model, "--out", str(out)])
        assert done.exit_code == 0, done.output
        with out.open() as file:
            outputs[model] = [float(row["p(yes)"]) for row in csv.DictReader(file)]
    state = state_of(run, "east")
    offset = dict(zip(state["groups"], state["offsets"][:, 1].tolist(), strict=True))  # type: ignore[index, call-overload]
    sex = columns("east", 260, 0.4)["sex"]
    before = np.clip(outputs["global"], 1e-6, 1 - 1e-6)
    shifted = np.log(before / (1 - before)) + np.array([offset[name] for name in sex])
    assert outputs["personal"] == pytest.approx(1 / (1 + np.exp(-shifted)), abs=1e-3)


def test_predict_says_which_column_is_missing(run: Run, tmp_path: Path) -> None:
    table = columns("east", 20, 0.4)
    del table["sex"]
    write_sites(tmp_path, {"new": table})
    done = CliRunner().invoke(
        app, ["predict", str(run.folder), str(tmp_path / "new.csv"), "--client", "east"]
    )
    assert done.exit_code != 0 and "sex" in str(done.exception or done.output)


def test_export_has_the_offsets(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    done = CliRunner().invoke(
        app, ["export", str(run.folder), "--client", "east", "--out", str(out)]
    )
    assert done.exit_code == 0 and "thresholds by sex (f, m)" in out.with_suffix(".md").read_text()


def test_groups_with_few_samples_keep_the_threshold_of_the_model(
    tmp_path: Path, folder: Path
) -> None:
    method = {"name": "groupthresholds", "min_count": 1000}
    run = finished(tmp_path / "run", folder, method=method, data=dict(SPLIT))
    result = read_result(run)
    assert result.metric(model="personal").values == result.metric(model="global").values


def test_it_shifts_the_model_that_poise_serves(tmp_path: Path, folder: Path) -> None:
    method = {"name": "poise", "fold": False, "finish": "groupthresholds"}
    result = read_result(finished(tmp_path / "run", folder, method=method, data=dict(SPLIT)))
    assert result.main_model == "groupthresholds" and "personal" in result.models
    own = result.models["groupthresholds"].groups
    before = result.models["personal"].groups
    assert own is not None and before is not None
    assert own.cells.keys() == before.cells.keys()
    area = CellKey("east", "sex", "f")
    # A shift by group changes no ranking within the group.
    exact = before.cells[area].values["auroc"]
    assert own.cells[area].values["auroc"].value == pytest.approx(exact.value, abs=0.02)


def test_nothing_about_groups_leaves_a_client(tmp_path: Path, folder: Path) -> None:
    own = finished(tmp_path / "own", folder, method="groupthresholds", data=dict(SPLIT))
    plain = finished(tmp_path / "plain", folder, method="fedavg", data=dict(SPLIT))
    sent = [record["bytes_up"] for record in own.rounds()]
    assert sent == [record["bytes_up"] for record in plain.rounds()]
    (end,) = own.finish()
    assert end["bytes_up"] < 100 * len(own.clients)


def test_without_groups_it_serves_the_global_model(tmp_path: Path, folder: Path) -> None:
    run = finished(tmp_path / "run", folder, method="groupthresholds", data={"groups": []})
    result = read_result(run)
    assert result.metric(model="personal").values == result.metric(model="global").values
