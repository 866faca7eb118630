"""Configurations: what is refused, and how the refusal reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

import equipoise as eq
from equipoise.experiment import ConfigurationError, Participation, experiment, load, with_settings
from equipoise.methods.fedprox import FedProx


@pytest.mark.parametrize(
    ("config", "sentences"),
    [
        ({"roundz": 3}, ["roundz: unknown key; did you mean rounds? Known here: data, model,"]),
        ({"training": {"learning": 1}}, ["training.learning: unknown key", "Known here: optimiser, lr,"]),
        ({"data": {"client": 3}}, ["data.client: unknown key; did you mean data.clients?"]),
        (
            {"faults": {"script": [{"round": 1, "client": "a", "kind": "drop", "knd": 1}]}},
            ["faults.script.0.knd: unknown key; did you mean faults.script.0.kind?"],
        ),
        ({"rounds": 0}, ["rounds: ", "greater than or equal to 1, got 0"]),
        ({"rounds": "many"}, ["rounds: ", "got 'many'"]),
        ({"training": {"lr": -1, "batch": 0}}, ["training.lr: ", "got -1", "training.batch: ", "got 0"]),
        ({"training": {"optimiser": "adamax"}}, ["training.optimiser: ", "'sgd', 'adam' or 'adamw', got 'adamax'"]),
        ({"method": "fedprx"}, ["method: unknown method 'fedprx'; did you mean 'fedprox'?"]),
        ({"method": {"name": "fedprox", "mu": -1}}, ["method.mu: ", "got -1; fedprox.mu is float >= 0"]),
        ({"method": {"name": "fedprox", "nu": 1}}, ["unknown parameter of fedprox 'nu'; did you mean 'mu'?"]),
        ({"method": {"mu": 1}}, ["method: expected a name or a mapping with `name`, got {'mu': 1}"]),
        ({"method": {"name": "fedavg", "weights": 3}}, ["expected a name or a mapping with `name`, got 3"]),
        ({"model": 3}, ["model: expected a name, a mapping with `name` and options, or a torch module, got 3"]),
        ({"models": ["mlp"]}, ["models: expected a mapping from name to model, got ['mlp']"]),
        ({"models": {"private": {"hidden": [3]}}}, ["models.private: expected a name"]),
        ({"evaluation": {"metrics": ["acuracy"]}}, ["evaluation.metrics: unknown metric 'acuracy'; did you mean 'accuracy'?"]),
        ({"method": "scaffold", "training": {"momentum": 0.9}}, ["Scaffold needs plain sgd", "momentum=0.9"]),
        ({"data": {"partition": "dirichle:0.3"}}, ["dirichle"]),
    ],
)
@pytest.mark.parametrize("make", [experiment, lambda config: eq.Experiment(**config)], ids=["file", "python"])
def test_an_error_names_the_key_the_value_and_what_is_allowed(make: Any, config: dict[str, Any], sentences: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(config)
    for sentence in sentences:
        assert sentence in str(caught.value)


def test_every_error_is_listed_on_its_own_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        experiment({"rounds": 0, "seed": -1, "methd": "fedavg"})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["rounds", "seed", "methd"]


def test_short_forms_and_python_objects_are_taken() -> None:
    short = eq.Experiment(data="digits", method="fedprox")
    assert short.data.name == "digits" and short.build_method() == FedProx()
    own = eq.Experiment(model=nn.Linear(1, 1), method=FedProx(mu=3))
    assert own.build_method() == FedProx(mu=3)
    dumped = own.model_dump(mode="json")
    assert dumped["model"] == "<Linear given in Python>" and dumped["method"] == {"name": "fedprox", "average": "size", "mu": 3}


def test_a_dump_is_enough_to_repeat() -> None:
    first = eq.Experiment(
        method={"name": "fedprox", "mu": 0.5, "weights": "fedavg"},
        models={"model": {"name": "mlp", "hidden": [3], "clients": {"2": "cnn"}}},
        faults={"script": [{"round": 1, "client": "2", "kind": "nan"}]},
        training={"optimiser": "adam", "betas": (0.5, 0.9)},
        data={"name": "digits", "partition": "dirichlet:0.3", "clients": 4},
    )
    text = yaml.safe_dump(first.model_dump(mode="json"))
    second = experiment(yaml.safe_load(text))
    assert second.model_dump() == first.model_dump() and second.portable is None


@pytest.mark.parametrize(
    ("config", "reasons"),
    [
        ({"model": nn.Linear(1, 1)}, ["model is a Python object"]),
        ({"models": {"model": {"name": "mlp", "clients": {"1": nn.Linear(1, 1)}}}}, ["model is a Python object"]),
        ({"model": nn.Linear(1, 1), "dataset": eq.from_arrays([[0.0]], [0])}, ["data set is a Python object", "model is a Python object"]),
    ],
)
def test_why_an_experiment_cannot_be_rebuilt_from_its_file(config: dict[str, Any], reasons: list[str]) -> None:
    wanted = eq.Experiment(**config)
    assert wanted.portable is not None and all(reason in wanted.portable for reason in reasons)
    yaml.safe_dump(wanted.model_dump(mode="json"))


def test_a_method_of_a_function_or_a_script_cannot_be_rebuilt_elsewhere() -> None:
    class Local(eq.Method):
        pass

    assert "Local is defined in a notebook or script" in str(eq.Experiment(method=Local()).portable)


def test_dotted_settings_reach_inside_and_leave_the_original_alone() -> None:
    config = {"method": "fedprox", "training": {"lr": 0.1}, "data": "digits"}
    changed = with_settings(config, {"method.mu": 0.5, "training.lr": 0.2, "participation.floor": 2, "rounds": 3, "data.clients": 4})
    assert changed == {
        "method": {"name": "fedprox", "mu": 0.5},
        "training": {"lr": 0.2},
        "data": {"name": "digits", "clients": 4},
        "participation": {"floor": 2},
        "rounds": 3,
    }
    assert config == {"method": "fedprox", "training": {"lr": 0.1}, "data": "digits"}
    with pytest.raises(ConfigurationError, match=r"rounds.x: rounds is 3, which has no parts; set rounds itself"):
        with_settings({"rounds": 3}, {"rounds.x": 1})


def test_files_that_are_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "good.yaml").write_text("method: {name: fedprox, mu: 1e-3}\nrounds: 2\n")
    with pytest.raises(ConfigurationError, match=r"no experiment file .*nothing.yaml; give the path of a YAML file, or flags"):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigurationError, match=r"list.yaml: expected a mapping such as `method: fedavg`, got list"):
        load(tmp_path / "list.yaml")
    with pytest.raises(ConfigurationError, match=r"broken.yaml is not YAML"):
        load(tmp_path / "broken.yaml")
    assert experiment(load(tmp_path / "good.yaml")).build_method() == FedProx(mu=0.001)


@pytest.mark.parametrize(
    ("given", "clients", "asked"), [({}, 7, 7), ({"fraction": 0.1}, 5, 1), ({"fraction": 0.3}, 10, 3), ({"number": 4}, 3, 3)]
)
def test_how_many_clients_are_asked(given: dict[str, Any], clients: int, asked: int) -> None:
    assert Participation(**given).size(clients) == asked
