"""Files of studies: what they may say, and how mistakes in them are reported."""

from __future__ import annotations

import copy

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
    ],
)
def test_mistakes_are_refused_naming_file_and_key(tmp_path, changes, hint):
    path = write(tmp_path, **changes)
    with pytest.raises(ConfigurationError) as caught:
        load_study(path)
    assert str(path) in str(caught.value)
    assert hint in str(caught.value)


def test_an_unknown_scale_is_refused_with_those_that_exist(tmp_path):
    with pytest.raises(ConfigurationError, match="paper, small"):
        load_study(write(tmp_path)).scale("half")
