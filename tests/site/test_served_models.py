"""Models that stay at a site: predictions and exports from the site's folder alone."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from equipoise.records import Record, dump
from equipoise.runs import Run
from equipoise.site.served_models import SiteModels
from equipoise.storage.store import RunError
from tests.helpers.answers import CommandLine, one_sentence
from tests.helpers.apart_sites import Network, apart_config, network_of, run_apart, run_joined
from tests.helpers.runs import sites

TABLE = {
    "label": "sick",
    "classes": ["no", "yes"],
    "columns": [
        {"name": "age", "kind": "number", "gaps": False},
        {"name": "ward", "kind": "category", "categories": ["a", "b"], "gaps": True},
    ],
}


@pytest.fixture
def equipoise(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capfd, monkeypatch)


def finished(tmp_path: Path, method: str) -> tuple[Run, Run, str]:
    """Return a run in process and one at sites, and the identifier of the latter."""
    config = apart_config(tmp_path, method)
    here = run_joined(config, tmp_path / "here")
    there = run_apart(config, tmp_path / "there", network_of(tmp_path).transport())
    return here, there, str(there.store.meta("run"))


@pytest.mark.parametrize("method", ["ditto", "poise", "fedrdn"])
def test_a_site_keeps_the_models_that_a_simulation_would_have(method: str, tmp_path: Path) -> None:
    here, _, run = finished(tmp_path, method)
    for client in ("ada", "bo"):
        own = SiteModels(tmp_path / "sites" / client, run[:6])
        x = torch.from_numpy(sites()[client][0])
        for name in own.models():
            expected = here.model(name, client)(x)
            assert torch.equal(own.model(name)(x), expected)
        assert own.main_model == here.main_model


def test_predictions_and_exports_work_from_the_folder_of_the_site_alone(
    tmp_path: Path, equipoise: CommandLine
) -> None:
    here, there, run = finished(tmp_path, "ditto")
    there.store.close()
    shutil.rmtree(tmp_path / "there")
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tmp_path / "sites" / "bo" / run / "states")
    x = sites()["bo"][0]
    np.savez(tmp_path / "new.npz", x=x)
    site = tmp_path / "sites" / "bo"
    assert equipoise("predict", "--site", site, run, tmp_path / "new.npz")[0] == 0
    rows = list(csv.DictReader(io.StringIO(equipoise.printed)))
    expected = here.model(here.main_model, "bo")(torch.from_numpy(x)).softmax(1)[:, 0]
    assert [float(row["p(0)"]) for row in rows] == pytest.approx(expected.tolist(), abs=1e-6)
    out = tmp_path / "model.safetensors"
    assert equipoise("export", "--site", site, run, "--out", out)[0] == 0
    own = here.model(here.main_model, "bo").state_dict()
    for name, tensor in load_file(out).items():
        assert torch.equal(tensor, own[name])
    assert "of site bo" in out.with_suffix(".md").read_text()


def test_a_table_is_prepared_by_the_statistics_of_the_site(
    tmp_path: Path, equipoise: CommandLine
) -> None:
    config = apart_config(tmp_path, "fedavg", models={}, model="mlp", data={"schema": TABLE})
    data = tmp_path / "data"
    for file in data.glob("*.npz"):
        file.unlink()
    for name, centre in (("north", 40), ("south", 70)):
        lines = ["age,ward,sick"]
        for row in range(40):
            lines.append(f"{centre + row % 9},{'ab'[row % 2]},{'yes' if row % 3 else 'no'}")
        (data / f"{name}.csv").write_text("\n".join(lines) + "\n")
    run = run_apart(
        config, tmp_path / "run", Network(tmp_path / "sites", data, ending=".csv").transport()
    )
    identifier = str(run.store.meta("run"))
    (tmp_path / "new.csv").write_text("age,ward\n44,a\n45,\n")
    printed = {}
    for name in ("north", "south"):
        words = ("predict", "--site", tmp_path / "sites" / name, identifier)
        assert equipoise(*words, tmp_path / "new.csv")[0] == 0
        printed[name] = equipoise.printed
    assert printed["north"] != printed["south"]
    joined = run_joined(config, tmp_path / "here")
    assert equipoise("predict", joined.folder, tmp_path / "new.csv", "--client", "north")[0] == 0
    assert equipoise.printed == printed["north"]
    run.store.close()
    sentence = one_sentence(equipoise("predict", tmp_path / "run", tmp_path / "new.csv"))
    assert "--site" in sentence


def test_what_a_site_does_not_keep_is_refused_in_one_sentence(
    tmp_path: Path, equipoise: CommandLine
) -> None:
    _, _, run = finished(tmp_path, "ditto")
    site = tmp_path / "sites" / "bo"
    np.savez(tmp_path / "new.npz", x=sites()["bo"][0])
    data = tmp_path / "new.npz"
    assert run in one_sentence(equipoise("predict", "--site", site, "ff" * 16, data))
    assert "nowhere" in one_sentence(
        equipoise("predict", "--site", tmp_path / "nowhere", run, data)
    )
    words = ("predict", "--site", site, run, data)
    assert "'ada'" in one_sentence(equipoise(*words, "--client", "ada"))
    assert "personal" in one_sentence(equipoise(*words, "--model", "other"))
    facts = site / run / "served.json"
    saved = json.loads(facts.read_text())
    facts.write_text(json.dumps({**saved, "recipe": None})[:50])
    with pytest.raises(RunError, match="is damaged"):
        SiteModels(site, run)


def test_damaged_models_of_a_site_are_refused_and_raise_nothing_else(tmp_path: Path) -> None:
    _, _, run = finished(tmp_path, "ditto")
    site = tmp_path / "sites" / "bo"
    facts = site / run / "served.json"
    models = site / run / "served.safetensors"
    saved = json.loads(facts.read_text())
    for change in ({"values": "abc"}, {"values": [{}]}, {"job": _with_method(saved["job"], 3)}):
        facts.write_text(json.dumps({**saved, **change}))
        with pytest.raises(RunError, match="is damaged"):
            SiteModels(site, run)
    facts.write_text(json.dumps(saved))
    wrong = Record(down=3, state=Record(), round=1, attempt=0)
    for record in (Record(a=1), wrong, Record(down=Record(), state=Record(), round="1", attempt=0)):
        models.write_bytes(dump(record))
        with pytest.raises(RunError, match="is damaged"):
            SiteModels(site, run)


def _with_method(job: str, method: object) -> str:
    content = json.loads(job)
    content["experiment"]["method"] = method
    return json.dumps(content)
