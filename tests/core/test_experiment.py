"""Configurations: what is refused, and how the refusal reads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from torch import nn

import equipoise as eq
from equipoise.experiment import (
    ConfigurationError,
    Participation,
    build,
    experiment,
    flat,
    load,
    with_settings,
)
from equipoise.experiment.build import prepare, try_precision
from equipoise.experiment.sections import Faults
from equipoise.experiment.specifications import method_spec
from equipoise.methods.fedprox import FedProx
from equipoise.task import Task
from equipoise.validation.imports import Imports


@pytest.mark.parametrize(
    ("config", "sentences"),
    [
        ({"roundz": 3}, ["roundz: unknown key; did you mean rounds? Known here: data, model,"]),
        (
            {"training": {"learning": 1}},
            ["training.learning: unknown key", "Known here: optimiser, lr,"],
        ),
        ({"data": {"client": 3}}, ["data.client: unknown key; did you mean data.clients?"]),
        (
            {"faults": {"script": [{"round": 1, "client": "a", "kind": "drop", "knd": 1}]}},
            ["faults.script.0.knd: unknown key; did you mean faults.script.0.kind?"],
        ),
        ({"rounds": 0}, ["rounds: ", "greater than or equal to 1, got 0"]),
        ({"rounds": "many"}, ["rounds: ", "got 'many'"]),
        (
            {"training": {"lr": -1, "batch": 0}},
            ["training.lr: ", "got -1", "training.batch: ", "got 0"],
        ),
        (
            {"training": {"optimiser": "adamax"}},
            ["training.optimiser: ", "'sgd', 'adam' or 'adamw', got 'adamax'"],
        ),
        ({"method": "fedprx"}, ["method: unknown method 'fedprx'; did you mean 'fedprox'?"]),
        (
            {"method": {"name": "fedprox", "mu": -1}},
            ["method.mu: ", "got -1; fedprox.mu is float >= 0"],
        ),
        (
            {"method": {"name": "fedprox", "nu": 1}},
            ["unknown parameter of fedprox 'nu'; did you mean 'mu'?"],
        ),
        (
            {"method": {"mu": 1}},
            ["method: expected a name or a mapping with `name`, got {'mu': 1}"],
        ),
        (
            {"method": {"name": "fedavg", "weights": 3}},
            ["expected a name or a mapping with `name`, got 3"],
        ),
        (
            {"model": 3},
            ["model: expected a name, a mapping with `name` and options, or a torch module, got 3"],
        ),
        ({"models": ["mlp"]}, ["models: expected a mapping from name to model, got ['mlp']"]),
        ({"models": {"private": {"hidden": [3]}}}, ["models.private: expected a name"]),
        (
            {"evaluation": {"metrics": ["acuracy"]}},
            ["evaluation.metrics: unknown metric 'acuracy'; did you mean 'accuracy'?"],
        ),
        (
            {"method": "scaffold", "training": {"momentum": 0.9}},
            ["Scaffold needs plain sgd", "momentum=0.9"],
        ),
        ({"data": {"partition": "dirichle:0.3"}}, ["dirichle"]),
    ],
)
@pytest.mark.parametrize(
    "make", [experiment, lambda config: eq.Experiment(**config)], ids=["file", "python"]
)
def test_an_error_names_the_key_the_value_and_what_is_allowed(
    make: Any, config: dict[str, Any], sentences: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(config)
    for sentence in sentences:
        assert sentence in str(caught.value)


def test_every_error_is_listed_on_its_own_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        experiment({"rounds": 0, "seed": -1, "methd": "fedavg"})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "rounds",
        "seed",
        "methd",
    ]


def test_short_forms_and_python_objects_are_taken() -> None:
    short = eq.Experiment(data="digits", method="fedprox")
    assert short.data.name == "digits" and short.build_method() == FedProx()
    own = eq.Experiment(model=nn.Linear(1, 1), method=FedProx(mu=3))
    assert own.build_method() == FedProx(mu=3)
    dumped = own.model_dump(mode="json")
    assert dumped["model"] == "<Linear given in Python>" and dumped["method"] == {
        "name": "fedprox",
        "average": "size",
        "mu": 3,
    }


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
    assert second.model_dump() == first.model_dump() and second.why_not_portable is None


@pytest.mark.parametrize(
    ("config", "reasons"),
    [
        ({"model": nn.Linear(1, 1)}, ["model is a Python object"]),
        (
            {"models": {"model": {"name": "mlp", "clients": {"1": nn.Linear(1, 1)}}}},
            ["model is a Python object"],
        ),
        (
            {"model": nn.Linear(1, 1), "dataset": eq.from_arrays([[0.0]], [0])},
            ["data set is a Python object", "model is a Python object"],
        ),
    ],
)
def test_why_an_experiment_cannot_be_rebuilt_from_its_file(
    config: dict[str, Any], reasons: list[str]
) -> None:
    wanted = eq.Experiment(**config)
    assert wanted.why_not_portable is not None and all(
        reason in wanted.why_not_portable for reason in reasons
    )
    yaml.safe_dump(wanted.model_dump(mode="json"))


def test_a_method_of_a_function_or_a_script_cannot_be_rebuilt_elsewhere() -> None:
    class Local(eq.Method):
        pass

    assert "Local is defined in a notebook or script" in str(
        eq.Experiment(method=Local()).why_not_portable
    )


def test_dotted_settings_reach_inside_and_leave_the_original_alone() -> None:
    config = {"method": "fedprox", "training": {"lr": 0.1}, "data": "digits"}
    changed = with_settings(
        config,
        {
            "method.mu": 0.5,
            "training.lr": 0.2,
            "participation.floor": 2,
            "rounds": 3,
            "data.clients": 4,
        },
    )
    assert changed == {
        "method": {"name": "fedprox", "mu": 0.5},
        "training": {"lr": 0.2},
        "data": {"name": "digits", "clients": 4},
        "participation": {"floor": 2},
        "rounds": 3,
    }
    assert config == {"method": "fedprox", "training": {"lr": 0.1}, "data": "digits"}
    with pytest.raises(
        ConfigurationError, match=r"rounds.x: rounds is 3, which has no parts; set rounds itself"
    ):
        with_settings({"rounds": 3}, {"rounds.x": 1})


def test_files_that_are_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    (tmp_path / "good.yaml").write_text("method: {name: fedprox, mu: 1e-3}\nrounds: 2\n")
    with pytest.raises(
        ConfigurationError,
        match=r"no experiment file .*nothing.yaml; give the path of a YAML file, or flags",
    ):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(
        ConfigurationError,
        match=r"list.yaml: expected a mapping such as `method: fedavg`, got list",
    ):
        load(tmp_path / "list.yaml")
    with pytest.raises(ConfigurationError, match=r"broken.yaml is not YAML"):
        load(tmp_path / "broken.yaml")
    assert experiment(load(tmp_path / "good.yaml")).build_method() == FedProx(mu=0.001)


@pytest.mark.parametrize(
    ("given", "clients", "asked"),
    [({}, 7, 7), ({"fraction": 0.1}, 5, 1), ({"fraction": 0.3}, 10, 3), ({"number": 4}, 3, 3)],
)
def test_how_many_clients_are_asked(given: dict[str, Any], clients: int, asked: int) -> None:
    assert Participation(**given).size(clients) == asked


@pytest.mark.parametrize(
    ("key", "taken", "refused"),
    [
        ("rounds", [1, 10**9], [0, 10**9 + 1]),
        ("seed", [0, 2**63 - 1], [-1, 2**63]),
        ("workers", [None, 0, 256], [-1, 257]),
        ("keep", [1, 2**31 - 1], [0, 2**31]),
        ("memory", [1, 2**31 - 1], [0, 2**31]),
        ("device", ["cpu", "cuda", "cuda:1", "cuda:999"], ["gpu", "cuda:1000", "cuda:", "cpu:0"]),
        ("participation.fraction", [1e-6, 1.0], [0.0, 1.0001]),
        ("participation.availability", [1e-6, 1.0], [0.0, 1.0001]),
        ("participation.number", [None, 1], [0]),
        ("participation.floor", [1], [0]),
        ("participation.tries", [1], [0]),
        ("participation.deadline", [1e-6], [0.0, float("inf"), float("nan")]),
        ("participation.script", [{1: ["a"]}, {1: {"clients": ["a"], "attempt": 0}}], [{1: {"clients": ["a"], "attempt": -1}}, {1: "a"}]),
        ("faults.dropout", [0.0, 0.999], [-0.001, 1.0]),
        ("faults.corrupt", [0.0, 0.999], [-0.001, 1.0]),
        ("faults.stragglers", [0.0, 1.0], [-0.001, 1.001]),
        ("faults.slowdown", [1.0], [0.999]),
        ("faults.deadline", [None, 1e-6], [0.0]),
        ("faults.script", [[{"round": 1, "client": "a", "kind": "kill"}]], [[{"round": 0, "client": "a", "kind": "kill"}]]),
        ("faults.script", [[{"round": 1, "client": "a", "kind": "nan", "exchange": 1, "attempt": 0}]], [[{"round": 1, "client": "a", "kind": "nan", "exchange": 0}]]),
        ("faults.script", [], [[{"round": 1, "client": "a", "kind": "nan", "attempt": -1}]]),
        ("evaluation.every", [0, 1], [-1]),
        ("evaluation.main", ["loss", None], ["los"]),
        ("models", [{str(k): "mlp" for k in range(100)}, {"a-b": "mlp"}], [{str(k): "mlp" for k in range(101)}, {"a@b": "mlp"}]),
        ("model", ["mlp", {"name": "mlp", "clients": {"a": "cnn"}}], [{"name": 3}, {"hidden": [3]}, {"name": "mlp", "clients": ["a"]}, {"name": "mlp", "clients": {"a": 3}}]),
    ],
)  # fmt: skip
def test_settings_are_taken_up_to_their_bounds(
    key: str, taken: list[Any], refused: list[Any]
) -> None:
    for value in taken:
        experiment(with_settings({}, {key: value}))
    for value in refused:
        with pytest.raises(ConfigurationError, match=key.partition(".")[0]):
            experiment(with_settings({}, {key: value}))


def test_what_is_not_said_has_these_values() -> None:
    found = flat(eq.Experiment().model_dump(mode="json"))
    expected = {
        "model": "auto",
        "models": {},
        "method.name": "fedavg",
        "rounds": 50,
        "seed": 0,
        "workers": None,
        "device": "cpu",
        "keep": 2,
        "memory": 512,
        "budget": None,
        "participation.fraction": 1.0,
        "participation.number": None,
        "participation.availability": 1.0,
        "participation.floor": 1,
        "participation.tries": 3,
        "participation.deadline": 3600.0,
        "participation.script": {},
        "faults.dropout": 0.0,
        "faults.corrupt": 0.0,
        "faults.corruption": "nan",
        "faults.stragglers": 0.0,
        "faults.slowdown": 10.0,
        "faults.deadline": None,
        "faults.script": [],
        "evaluation.every": 1,
        "evaluation.clients": "all",
        "evaluation.splits": ["validation", "test"],
        "evaluation.metrics": [],
        "evaluation.main": None,
        "evaluation.after_local": False,
        "evaluation.curves": True,
        "evaluation.no_curves": [],
        "evaluation.distances": False,
        "evaluation.group_minimum": 10,
        "evaluation.threshold": 50,
    }
    assert {
        key: value for key, value in found.items() if not key.startswith(("data.", "training."))
    } == expected
    (fault,) = Faults(script=[{"round": 2, "client": "a", "kind": "nan"}]).script
    assert (fault.round, fault.exchange, fault.attempt) == (2, 1, 0)


@pytest.mark.parametrize(
    ("given", "some"),
    [
        ({}, False), ({"dropout": 0.1}, True), ({"corrupt": 0.1}, True), ({"stragglers": 0.5}, False), ({"deadline": 1.0}, False),
        ({"stragglers": 0.5, "deadline": 1.0}, True), ({"script": [{"round": 1, "client": "a", "kind": "drop"}]}, True),
    ],
)  # fmt: skip
def test_whether_any_fault_is_simulated(given: dict[str, Any], some: bool) -> None:
    assert Faults(**given).any is some


def test_attempts_begin_with_the_one_that_counted() -> None:
    scripted = Participation(tries=2, script={4: {"clients": ["a"], "attempt": 3}, 5: ["a"]})
    assert [list(scripted.attempts(number)) for number in (3, 4, 5)] == [[0, 1], [3, 4], [0, 1]]
    assert Participation(fraction=0.29).size(100) == 29, "0.29 x 100 is a little less than 29"
    assert (
        Participation(fraction=0.01).size(5) == 1
        and Participation(number=2, fraction=1.0).size(5) == 2
    )


def test_the_sentence_about_many_mistakes_is_short() -> None:
    for count, lines in ((20, 20), (21, 21), (30, 21)):
        with pytest.raises(ConfigurationError) as caught:
            experiment({f"key{k}": 1 for k in range(count)})
        told = str(caught.value).splitlines()
        assert len(told) == lines and told[-1].startswith(
            f"... and {count - 20} more mistakes" if count > 20 else "key19: unknown key"
        )


def test_sentences_name_their_key_once_and_the_value_once() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"models": {"a@b": "mlp"}}, "models: expected names without @, got 'a@b'; 'a-b', say"),
        ({"model": {"name": 3}}, "model.name: expected text, got 3"),
        (
            {"models": {"m": {"name": "mlp", "clients": {"7": 3}}}},
            "models.m.clients.7: expected a name, a mapping",
        ),
        ({"device": "gpu"}, "device: expected cpu, cuda or cuda:1, say, got 'gpu'"),
        ({"keep": "x"}, "keep: expected an integer, got 'x'"),
        ({"zzz": 1}, "zzz: unknown key. Known here: data, model"),
        (
            {"participation": {"script": {"1": {"clients": [], "attemt": 1}}}},
            "participation.script.1.attemt: unknown key; did you mean "
            "participation.script.1.attempt? Known here: clients, attempt",
        ),
    )
    for config, sentence in cases:
        with pytest.raises(ConfigurationError) as caught:
            experiment(config)
        assert str(caught.value).startswith(sentence)
        assert str(caught.value).count("got ") <= 1
    with pytest.raises(ConfigurationError, match="expected text as keys, got 3"):
        experiment({3: 1})  # type: ignore[dict-item]


def test_a_permission_ends_with_the_experiment_that_it_was_for() -> None:
    with pytest.raises(ConfigurationError, match="allow"):
        experiment({"model": "mine.own:net"}, Imports())
    assert eq.Experiment(model="mine.own:net").model == "mine.own:net", (
        "given in Python, it is the user's own"
    )
    assert experiment({"model": "mine.own:net"}).model == "mine.own:net"


def test_auto_is_named_by_the_shape_of_the_data_and_other_models_stay() -> None:
    wanted = eq.Experiment()
    assert (
        wanted.with_model((1, 28, 28)).model == "cnn"
        and wanted.with_model((7,)).model == "mlp"
        and wanted.model == "auto"
    )
    assert eq.Experiment(model="resnet12").with_model((7,)).model == "resnet12"
    assert eq.Experiment(models={"private": "mlp"}).with_model((1, 28, 28)).model == "auto"
    assert eq.Experiment(models={"private": "mlp"}).architectures() == {
        "private": "mlp"
    } and wanted.architectures() == {"model": "auto"}
    assert eq.Experiment(method="fedprox").to_spec()["method"] == {
        "name": "fedprox",
        "average": "size",
        "mu": FedProx().mu,
    }


def test_an_empty_slot_is_none_and_a_filled_one_is_checked() -> None:
    assert method_spec({"name": "fedprox", "weights": None}) == {"name": "fedprox"}
    assert method_spec({"name": "fedprox", "weights": "feddisco"}) == {
        "name": "fedprox",
        "weights": {"name": "feddisco"},
    }
    assert (
        eq.Experiment(model=nn.Linear(1, 1)).why_not_portable
        == "its model is a Python object"
        == eq.Experiment(model=nn.Linear(1, 1)).why_not_remote
    )
    assert (
        eq.Experiment(dataset=eq.from_arrays([[0.0]], [0])).why_not_portable
        == "its data set is a Python object"
    )
    assert (
        eq.Experiment().why_not_portable is None
        and eq.Experiment(dataset=eq.from_arrays([[0.0]], [0])).why_not_remote is None
    )


# From an experiment to networks and a method.


TASK = Task("classification", (4,), 3)
SMALL = {"name": "mlp", "hidden": [2]}


def prepared(task: Task = TASK, **settings: Any) -> Any:
    return prepare(eq.Experiment(**{"model": SMALL, **settings}), task, ["ada", "bo"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"device": "cuda"}, "device: expected one that is present, got 'cuda'; this machine has cpu only"),
        ({"participation": {"script": {2: ["ada", "bob"]}}}, "unknown client under participation.script.2 'bob'; did you mean 'bo'"),
        ({"evaluation": {"no_curves": ["adda"]}}, "unknown client under evaluation.no_curves 'adda'; did you mean 'ada'"),
        ({"faults": {"script": [{"round": 1, "client": "boo", "kind": "drop"}]}}, "unknown client under faults.script 'boo'"),
        ({"models": {"model": {**SMALL, "clients": {"adam": SMALL}}}}, "unknown client under models.model.clients 'adam'"),
        ({"method": {"name": "standalone", "model": "modle"}}, "unknown model of the experiment under method.model 'modle'; did you mean 'model'"),
        ({"evaluation": {"main": "rmse"}}, "rmse"),
        ({"model": {"name": "mlp", "hidden": ["x"]}}, "hidden"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_round_1(
    settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=sentence):
        prepared(**settings)


def test_a_method_of_classes_refuses_numbers() -> None:
    with pytest.raises(
        ConfigurationError,
        match=(
            "FedLsa works on classes, but the task is regression; choose another method or a label "
            "of classes"
        ),
    ):
        prepared(Task("regression", (4,), 1), method="fedlsa")
    prepared(method="fedlsa")


def test_clients_may_have_models_of_their_own() -> None:
    settings = {
        "models": {
            "proxy": SMALL,
            "private": {**SMALL, "clients": {"bo": {"name": "mlp", "hidden": [5]}}},
        },
        "method": "fedekd",
        "seed": 4,
    }
    bench, method = prepared(**settings)
    assert (
        type(method).__name__ == "FedeKD"
        and (bench.seed, bench.device) == (4, "cpu")
        and list(bench.architectures)[:2] == ["proxy", "private"]
    )
    sizes = {
        client: bench.initial(bench.key("private", client)).count() for client in ("ada", "bo")
    }
    assert sizes == {"ada": 4 * 2 + 2 + 2 * 3 + 3, "bo": 4 * 5 + 5 + 5 * 3 + 3}


def test_what_a_method_brings_follows_from_each_clients_own_models() -> None:
    class Brings(eq.Method):
        def models(self, task: Task, own: Any) -> Any:
            def twice() -> nn.Module:
                return nn.Sequential(own["private"](), nn.Linear(task.outputs, task.outputs))

            return {"private": own["model"], "twice": twice}

    own = {"model": SMALL, "private": {**SMALL, "clients": {"bo": {"name": "mlp", "hidden": [5]}}}}
    bench, _ = prepared(models=own, method=Brings())
    sizes = {client: bench.initial(bench.key("twice", client)).count() for client in ("ada", "bo")}
    assert sizes == {"ada": 19 + 12, "bo": 43 + 12}
    assert bench.initial(bench.key("private", "bo")).count() == 43, (
        "what a client has of its own stays"
    )
    assert bench.initial(bench.key("model", "bo")).count() == 19


def test_a_method_that_never_trains_takes_no_batch_norm() -> None:
    class Still(eq.Method):
        trains = False

    bench, _ = prepared(method=Still())
    assert list(bench.architectures) == ["model"]
    with pytest.raises(
        ConfigurationError,
        match="Still never trains a model, so batch-norm statistics would stay at their start",
    ):
        prepared(Task("classification", (3, 32, 32), 3), method=Still(), model="resnet12")


def test_bfloat16_is_tried_in_a_process_of_its_own_and_only_where_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    ended = SimpleNamespace(returncode=0, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda words, **_: asked.append(words) or ended)
    build._try_bfloat16.cache_clear()
    try:
        try_precision(eq.Experiment())
        assert asked == []
        wanted = eq.Experiment(training={"precision": "bfloat16"})
        try_precision(wanted)
        try_precision(wanted)
        assert (
            len(asked) == 1
            and "torch.autocast('cpu', torch.bfloat16)" in asked[0][-1]
            and asked[0][1:3] == ["-P", "-c"]
        ), "once"
        for ended.returncode, ended.stderr, said in (
            (-4, "", "it ended with code -4"),
            (1, "Traceback\nRuntimeError: no", "RuntimeError: no"),
        ):
            build._try_bfloat16.cache_clear()
            with pytest.raises(
                ConfigurationError,
                match=rf"bfloat16 does not work on this machine \({said}\); use float32",
            ):
                try_precision(wanted)
    finally:
        build._try_bfloat16.cache_clear()
