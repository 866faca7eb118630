"""Methods of a study: mistakes in the file, and refusals of valid methods."""

from __future__ import annotations

import pytest
import yaml

from equipoise.experiment import ConfigurationError
from equipoise.study.definition import load_study
from equipoise.study.plan import plan_study
from equipoise.study.run import stored_table
from equipoise.study.verdicts import OPEN
from tests.helpers.constructed import write_constructed

ADAM = {"training": {"optimiser": "adam"}}
STUDY = {
    "title": "Digits",
    "experiment": {"data": {"name": "digits", "clients": 3, "samples": 300}, "rounds": 2},
    "methods": {"fedavg": "fedavg", "scaffold": {"name": "scaffold", **ADAM}},
    "conditions": {"even": {"data.partition": "iid"}},
    "seeds": [0, 1],
    "measures": ["average"],
    "claims": ["fedavg.average > scaffold.average"],
    "scales": {"paper": {"core_hours": 1}},
}


def study(folder, **changes):
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    return load_study(path)


@pytest.mark.parametrize(
    ("method", "hint"),
    [
        ("fedavgg", "methods.row: unknown method 'fedavgg'; did you mean 'fedavg'"),
        ({"mu": 1}, "methods.row: expected a name or a mapping with `name`"),
        ({"name": "fedprox", "muu": 1}, "methods.row: unknown parameter of fedprox 'muu'"),
        ({"name": "fedavg", "training": {"lrr": 1}}, "methods.row: training.lrr: unknown key"),
        ({"name": "fedavg", "training": 5}, "methods.row: training: "),
        ({"name": "fedavg", "models": 5}, "methods.row: models: expected a mapping"),
        ({"name": "scaffold", "rounds": 0, **ADAM}, "methods.row: rounds: expected a value"),
        (None, "methods.row: expected a name or a mapping"),
        (["fedavg"], "methods.row: expected a name or a mapping"),
        ("os:system", "methods.row: 'os:system' is named by a file"),
        ({"name": "kdia", "serves": ["global", "techer"]}, "methods.row: serves: unknown"),
        ({"name": "kdia", "serves": ["global", "techer"]}, "Known: global, teacher"),
        ({"name": "fedavg", "serves": ["personal"]}, "Known: global"),
    ],
)
def test_a_mistake_in_a_method_is_an_error_that_names_file_and_row(tmp_path, method, hint):
    loaded = study(tmp_path, methods={"fedavg": "fedavg", "row": method}, claims=[])
    with pytest.raises(ConfigurationError) as caught:
        plan_study(loaded, loaded.scale("paper"))
    assert str(caught.value).startswith(f"{loaded.path}: ")
    assert hint in str(caught.value)


@pytest.mark.parametrize("baselines", ["standalone", "none"])
@pytest.mark.parametrize(
    ("setting", "hint"),
    [({"data.partition": "dirichlett:1"}, "dirichlett"), ({"models": 5}, "models: expected")],
)
def test_a_mistake_in_the_shared_experiment_names_file_and_condition(
    tmp_path, setting, hint, baselines
):
    loaded = study(tmp_path, conditions={"odd": setting}, baselines=baselines)
    with pytest.raises(ConfigurationError) as caught:
        plan_study(loaded, loaded.scale("paper"))
    assert f"{loaded.path}: experiment at odd: " in str(caught.value)
    assert hint in str(caught.value)


def test_a_valid_method_that_cannot_work_with_the_settings_is_a_refusal(tmp_path):
    loaded = study(tmp_path)
    plan = plan_study(loaded, loaded.scale("paper"))
    assert [(refusal.method, refusal.condition) for refusal in plan.refusals] == [
        ("scaffold", "even")
    ]
    assert {run.method for run in plan.runs} == {"standalone", "fedavg"}


def test_a_table_knows_the_refusals_and_claims_that_need_them_stay_open(tmp_path):
    loaded = study(tmp_path)
    write_constructed(loaded)
    table = stored_table(loaded, "paper")
    assert [refusal.method for refusal in table.refusals] == ["scaffold"]
    verdict = table.verdicts[0]
    assert (verdict.decision, verdict.seen) == (OPEN, True)
    assert verdict.reason == "scaffold refuses its settings at even"
