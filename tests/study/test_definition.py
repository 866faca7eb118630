"""Files of studies: what they may say, and how mistakes in them are reported."""

from __future__ import annotations

import copy
import math

import pytest
import yaml

from equipoise.experiment import ConfigurationError
from equipoise.study.definition import load_study

STUDY = {
    "title": "Digits",
    "experiment": {"data": {"name": "digits", "clients": 4}, "rounds": 4},
    "methods": {"fedavg": "fedavg", "kdia": {"name": "kdia", "serves": ["global", "teacher"]}},
    "conditions": {
        "even": {"data.partition": "iid"},
        "skewed": {"data.partition": "dirichlet:0.3"},
    },
    "seeds": [0, 1],
    "measures": ["average", "worst"],
    "printed": {"even": {"average": {"fedavg": 90.1, "kdia.teacher": [91.5, 0.2]}}},
    "claims": [{"claim": "kdia.teacher.average > every other.average", "says": "best"}],
    "scales": {
        "paper": {"core_hours": 1},
        "small": {
            "core_hours": 0.1,
            "conditions": ["even"],
            "seeds": [0],
            "settings": {"rounds": 2},
        },
    },
}


def write(folder, **changes):
    content = copy.deepcopy(STUDY)
    for key, value in changes.items():
        target = content
        *parents, last = key.split("__")
        for parent in parents:
            target = target[parent]
        target[last] = value
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_rows_conditions_seeds_and_scales_are_read(tmp_path):
    study = load_study(write(tmp_path))
    assert study.row_names == ["fedavg", "kdia.global", "kdia.teacher"]
    assert [row.model for row in study.rows] == [None, "global", "teacher"]
    small, paper = study.scale("small"), study.scale("paper")
    assert study.conditions(small) == ["even"]
    assert study.conditions(paper) == ["even", "skewed"]
    assert study.seeds(small, "even") == [0]
    assert study.config(small, "skewed")["rounds"] == 2
    assert study.config(paper, "skewed")["data"]["partition"] == "dirichlet:0.3"
    assert study.sayings[study.claims[0].text] == "best"


def test_seeds_may_differ_by_condition(tmp_path):
    path = write(tmp_path, scales__paper__seeds_at={"skewed": [7]})
    study = load_study(path)
    assert study.seeds(study.scale("paper"), "even") == [0, 1]
    assert study.seeds(study.scale("paper"), "skewed") == [7]


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"titel": "x"}, "titel"),
        ({"methods": {}}, "methods"),
        ({"methods__a.b": "fedavg"}, "a.b"),
        ({"methods__kdia__serves": "teacher"}, "kdia.serves"),
        ({"printed__odd": {}}, "odd"),
        ({"printed__even__cf": {"fedavg": 1}}, "cf"),
        ({"printed__even__average__fedavk": 1}, "fedavg"),
        ({"printed__even__average__fedavg": "90.1 ± 2"}, "number"),
        ({"claims": ["fedavg.cf > 0.1"]}, "cf"),
        ({"claims": ["fedavk.average > 0.1"]}, "fedavk"),
        ({"claims": ["fedavg.average > 0.1", "fedavg.average > 0.1"]}, "twice"),
        ({"scales__small__conditions": ["odd"]}, "odd"),
        ({"scales__small__seeds_at": {"odd": [1]}}, "odd"),
        ({"scales__small__core_hours": 0}, "core_hours"),
        ({"scales__small__core_hours": math.inf}, "scales.small.core_hours: expected a finite"),
        ({"scales__small__seeds": []}, "scales.small.seeds: expected at least one"),
        ({"scales__small__seeds_at": {"even": []}}, "scales.small.seeds_at.even: expected at"),
        ({"scales__small__conditions": []}, "scales.small.conditions: expected at least one"),
        ({"scales__small__settings": {"method": "fedprox"}}, "'method' is no setting that a scale"),
        ({"scales__small__settings": {"data.partition": "iid"}}, "participation, evaluation.every"),
        ({"scales": {"../../evil": {"core_hours": 1}}}, "scales.../../evil: expected a name of"),
        ({"scales": {".small": {"core_hours": 1}}}, "scales..small: expected a name of"),
        ({"scales__small__core_hour": 1}, "core_hour: unknown key; known are core_hours, seeds"),
        ({"seeds": [True]}, "seeds.0: expected an integer"),
        ({"seeds": ["1"]}, "seeds.0: expected an integer"),
        ({"seeds": [-1]}, "seeds.0: expected a value greater"),
        ({"experiment__method": "fedprox"}, "experiment.method: expected settings that all rows"),
        ({"experiment__seed": 3}, "experiment.seed: expected settings that all rows"),
        ({"conditions__even": {"seed": 3}}, "conditions.even.seed: expected settings"),
        ({"methods__standalone": {"name": "fedprox", "mu": 1}}, "methods.standalone: expected"),
        ({"methods__standalone": {"name": "standalone", "training": {"lr": 1}}}, "another name"),
        (
            {"methods__kdia__serves": ["global", "global"]},
            "kdia.serves: expected a list of distinct",
        ),
        ({"measures": ["average", "worst[x"]}, "average[mnist], got 'worst[x'"),
        ({"measures": ["average", "worst[]"]}, "average[mnist], got 'worst[]'"),
        ({"measures": ["average", "cf"], "baselines": "none"}, "measures: cf compares with"),
        ({"printed__even__average__fedavg": math.nan}, "number"),
        ({"printed__even__average__fedavg": [90, math.inf]}, "number"),
        (
            {"claims": [{"claim": "fedavg.average > 0.1", "say": "x"}]},
            "claims.0.say: unknown key; ",
        ),
        ({"claims": [5]}, "claims.0: expected a claim such as"),
        ({"seeds": [1, 0, 1]}, "seeds: expected distinct entries, found 1 twice"),
        ({"measures": ["average", "average"]}, "measures: expected distinct entries"),
        ({"scales__small__conditions": ["even", "even"]}, "conditions: expected distinct entries"),
        ({"scales__small__seeds_at": {"even": [1, 1]}}, "seeds_at.even: expected distinct entries"),
        ({"claims": ["fedavg.average > 0.1 at even, even"]}, "expected distinct conditions"),
        ({"measures": ["average", "best_average[mnist]"]}, "best_average is not known for single"),
        ({"measures": ["average", "seconds[mnist]"]}, "seconds is not known for single groups"),
        ({"measures": ["average", "majority"]}, "unknown measure 'majority'"),
        (
            {
                "methods": {"fedavg": "fedavg", "standalone": "standalone"},
                "printed": {},
                "measures": ["change"],
                "claims": ["fedavg.change > every other.change"],
            },
            "'every other' needs another method with change",
        ),
    ],
)
def test_mistakes_are_refused_naming_file_and_key(tmp_path, changes, hint):
    path = write(tmp_path, **changes)
    with pytest.raises(ConfigurationError) as caught:
        load_study(path)
    assert str(path) in str(caught.value)
    assert hint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_scale_changes_sizes_of_data_and_model_and_the_training_that_goes_with_them(tmp_path):
    settings = {"data.samples": 50, "model.hidden": [4], "training.lr": 0.1, "participation": {}}
    study = load_study(write(tmp_path, scales__small__settings=settings))
    assert study.config(study.scale("small"), "even")["model"]["hidden"] == [4]


def test_a_missing_file_is_called_a_study(tmp_path):
    with pytest.raises(ConfigurationError, match="no study file .*lost.yaml"):
        load_study(tmp_path / "lost.yaml")


def test_the_file_of_an_experiment_is_recognised(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(yaml.safe_dump({"data": {"name": "digits"}, "method": "fedavg"}))
    with pytest.raises(ConfigurationError, match="found an experiment .*equipoise compare"):
        load_study(path)


def test_an_unknown_scale_is_refused_with_those_that_exist(tmp_path):
    with pytest.raises(ConfigurationError, match="paper, small"):
        load_study(write(tmp_path)).scale("half")
