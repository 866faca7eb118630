"""What a comparison sets out to run."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.compare import TableOptions
from equipoise.comparison.labels import labels
from equipoise.comparison.plan import (
    alone_for,
    content,
    default_baseline,
    default_folder,
    folder_name,
    from_file,
    plan_comparison,
)
from equipoise.comparison.run import prepared
from equipoise.composition import compose, parts
from equipoise.data import from_arrays
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.methods.fedequilibria import FedEquilibria
from equipoise.methods.fedprox import FedProx
from equipoise.validation.imports import FromFile
from tests.helpers.plans import plan

BASE = {"rounds": 2, "data": {"name": "digits", "clients": 3}}


def test_standalone_is_added_once_and_shared_by_all_methods():
    cells = plan(BASE, ["fedavg", "fedprox"], seeds=[1, 2], partitions=["iid", "dirichlet:0.5"])
    alone = [cell for cell in cells if cell.label == "standalone"]
    assert len(cells) == 12 and len(alone) == 4
    assert {cell.alone for cell in cells} == {"standalone"}
    assert len({(cell.partition, cell.seed) for cell in alone}) == 4


def test_a_learning_rate_is_tuned_for_training_alone_too():
    cells = plan(BASE, ["fedavg"], seeds=[1], grid={"training.lr": [0.1, 0.01]})
    rates = [(cell.label, cell.experiment.training.lr) for cell in cells]
    assert rates == [("standalone", 0.1), ("standalone", 0.01), ("fedavg", 0.1), ("fedavg", 0.01)]


def test_a_grid_concerns_only_methods_that_have_the_parameter():
    cells = plan(BASE, ["fedavg", "fedprox"], seeds=[1], grid={"method.mu": [0.01, 0.1]})
    assert [cell.label for cell in cells] == ["standalone", "fedavg", "fedprox", "fedprox"]
    assert [cell.experiment.build_method().mu for cell in cells[2:]] == [0.01, 0.1]


def test_names_follow_from_content_and_from_nothing_else():
    def name(**changes: object) -> str:
        return plan({**BASE, **changes}, ["fedprox"], seeds=[1])[1].name

    assert name() == name(workers=2, keep=5) == name(method="fedavg")
    assert len({name(), name(rounds=3), name(model="cnn"), name(training={"lr": 0.2})}) == 4
    explicit = plan(BASE, [FedProx(mu=FedProx().mu)], seeds=[1])[1].name
    assert explicit == name(), "a default written out is the same experiment"


def test_an_experiment_can_be_the_base():
    from_object = plan(
        Experiment(rounds=2, data={"name": "digits", "clients": 3}), ["fedavg"], seeds=[3]
    )
    assert [cell.name for cell in from_object] == [
        cell.name for cell in plan(BASE, ["fedavg"], seeds=[3])
    ]


def test_several_models_standalone_trains_the_one_that_clients_keep():
    cells = plan({**BASE, "models": {"proxy": "mlp", "private": "cnn"}}, ["fedekd"], seeds=[1])
    assert cells[0].experiment.build_method().model == "private"


def test_the_default_folder_is_the_same_for_more_methods_or_seeds_and_another_for_other_settings():
    assert default_folder(BASE) == default_folder({**BASE, "method": "fedprox", "seed": 7})
    assert default_folder(BASE) != default_folder({**BASE, "rounds": 3})


def test_labels_tell_apart_what_differs():
    configs = [
        {"method": {"name": "fedavg"}, "rounds": 2, "seed": 1},
        {"method": {"name": "fedavg"}, "rounds": 5, "seed": 2},
    ]
    assert labels(configs) == ["fedavg (rounds=2)", "fedavg (rounds=5)"]
    guests = [{"method": {"name": "fedakd", "weights": {"name": "fedequilibria"}}}]
    assert labels(guests) == ["fedakd + weights=fedequilibria"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"methods": []}, "expected at least one"),
        ({"methods": ["fedprx"]}, "did you mean 'fedprox'"),
        ({"grid": {"method.nu": [1]}}, "did you mean 'method.mu'"),
        ({"grid": {"method.mu": []}}, "expected values for method.mu"),
        ({"grid": {"seed": [1, 2]}}, "not a setting to tune"),
        ({"partitions": ["dirichlt:0.3"]}, "dirichlet"),
    ],
)
def test_bad_plans_are_refused_with_a_sentence(change: dict[str, object], sentence: str):
    with pytest.raises(ValueError, match=sentence):
        plan(BASE, **({"methods": ["fedprox"], "seeds": [1]} | change))


def test_a_plan_without_lists_takes_seed_and_partition_of_its_base_and_leaves_out_repetitions() -> (
    None
):
    cells = plan(
        {**BASE, "seed": 7, "data": {**BASE["data"], "partition": "dirichlet:0.3"}},
        ["fedavg", "fedavg"],
    )
    assert [(cell.label, cell.seed, cell.partition) for cell in cells] == [
        ("standalone", 7, "dirichlet:0.3"),
        ("fedavg", 7, "dirichlet:0.3"),
    ]
    again = plan(
        BASE, ["standalone", "fedavg"], seeds=[1, 1, 2], partitions=["iid", "iid", "dirichlet:0.5"]
    )
    assert [(cell.partition, cell.seed) for cell in again[::2]] == [
        ("iid", 1),
        ("iid", 2),
        ("dirichlet:0.5", 1),
        ("dirichlet:0.5", 2),
    ]
    assert {cell.experiment.workers for cell in again} == {0} and "Experiment" not in repr(again[0])


def test_a_method_that_another_process_cannot_import_is_tuned_as_it_is() -> None:
    @dataclass(frozen=True)
    class Mine(FedProx):
        pass

    cells = plan(BASE, [Mine(mu=0.5)], seeds=[1], grid={"method.mu": [0.1, 0.2]})
    methods = [cell.experiment.build_method() for cell in cells[1:]]
    assert [method.mu for method in methods] == [0.1, 0.2] and all(
        isinstance(method, Mine) for method in methods
    )  # type: ignore[attr-defined]
    assert [cell.label for cell in cells] == ["standalone", "mine", "mine"]
    composed = plan(
        BASE, [compose(Mine(mu=0.5), weights=FedEquilibria())], seeds=[1], grid={"method.mu": [0.3]}
    )[1].experiment.build_method()
    base, guests = parts(composed)
    assert base.mu == 0.3 and list(guests) == ["weights"]  # type: ignore[attr-defined]


def test_a_setting_that_came_after_version_0_2_changes_no_name_unless_it_is_set() -> None:
    data = {
        "name": "digits",
        "partition": "dirichlet:0.3",
        "clients": 6,
        "schema": {"centre": 1, "scale": 2},
    }

    def name(**changes: object) -> str:
        return folder_name(
            Experiment(
                data={**data, **changes},
                model="mlp",
                method="standalone",
                training={"lr": 0.1},
                rounds=4,
                seed=3,
            )
        )

    assert name() == "standalone-s3-3dd90b5a36"  # as version 0.2 called it
    assert len({name(), name(without=["a"]), name(groups={"sex": None})}) == 3


def test_data_and_models_that_live_here_are_part_of_a_name() -> None:
    x = torch.linspace(-1, 1, 24).reshape(12, 2)

    def name(plus: float = 0.0, flip: int = 0, model: object = "mlp") -> str:
        y = (torch.arange(12) % 2 + flip) % 2
        return folder_name(
            Experiment(
                dataset=from_arrays(x.numpy() + plus, y.numpy()), model=model, data={"clients": 2}
            )
        )

    assert (
        name() == name()
        and len({name(), name(plus=1.0), name(flip=1), name(model=torch.nn.Linear(2, 2))}) == 4
    )
    assert (
        content(Experiment(**BASE))
        .keys()
        .isdisjoint({"dataset", "objects", "workers", "keep", "memory"})
    )
    assert re.fullmatch(r"fedavg-s5-[0-9a-f]{10}", folder_name(Experiment(**BASE, seed=5)))
    assert re.fullmatch(r"comparisons/digits-[0-9a-f]{8}", str(default_folder(BASE)))
    assert default_folder(BASE) == default_folder(
        {**BASE, "data": {**BASE["data"], "partition": "dirichlet:0.1"}}
    )


@pytest.mark.parametrize(
    ("labels", "baseline"),
    [(["standalone", "fedprox", "fedavg"], "fedavg"), (["standalone", "fedprox", "ditto"], "fedprox"), (["standalone"], "standalone"), ([], "standalone")],
)  # fmt: skip
def test_others_are_tested_against_fedavg_or_the_first(labels: list[str], baseline: str) -> None:
    assert default_baseline(labels) == baseline


@pytest.mark.parametrize(
    ("models", "model"),
    [({}, None), (None, None), ({"proxy": "mlp", "private": "cnn"}, "private"), ({"a": "mlp", "model": "cnn"}, "model"), ({"a": "mlp", "b": "mlp"}, "a")],
)  # fmt: skip
def test_alone_clients_train_the_model_that_they_keep(models: object, model: str | None) -> None:
    assert alone_for({"models": models}) == {
        "name": "standalone",
        **({"model": model} if model else {}),
    }


def test_what_is_given_stands_in_place_of_what_a_file_says() -> None:
    file = FromFile(
        {
            "rounds": 3,
            "methods": ["fedavg"],
            "seeds": [1, 2],
            "level": 0.9,
            "grid": {"training.lr": [0.1]},
        }
    )
    rest, found = from_file(
        file, methods=["fedprox"], seeds=(), grid=None, level=None, baseline=None
    )
    assert dict(rest) == {"rounds": 3} and isinstance(rest, FromFile)
    assert found == {
        "methods": ["fedprox"],
        "seeds": [1, 2],
        "grid": {"training.lr": [0.1]},
        "level": 0.9,
        "baseline": None,
    }
    for wrong, sentence in (
        ({"methods": "fedavg"}, "methods: expected a list, got 'fedavg'"),
        ({"grid": [1]}, "grid: expected a mapping"),
        ({"baseline": ["x"]}, "baseline: expected a name"),
        ({"measure": 3}, "measure: expected a name"),
        ({"level": "0.9"}, "level: expected a number"),
        ({"target": [1]}, "target: expected a number"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            from_file(FromFile(wrong), **dict.fromkeys(wrong))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seeds": ["1"]}, "seeds: expected whole numbers, got '1'"),
        ({"partitions": [3]}, "partitions: expected texts, got 3"),
        (
            {"grid": {"method.mu": "0.1"}},
            "grid: expected a list of values for method.mu, got '0.1'",
        ),
        ({"grid": {"method.mu": 0.1}}, "grid: expected a list of values for method.mu, got 0.1"),
        ({"grid": {"method.mu": [[1]]}}, "grid: expected numbers or texts for method.mu"),
        ({"grid": {"method.mu": [0.1, {"a": 1}]}}, "grid: expected numbers or texts for method.mu"),
        (
            {"grid": {"data.partition": ["iid"]}},
            "data.partition is not a setting to tune; use the seeds",
        ),
        ({"grid": {"method": ["fedavg"]}}, "grid: method is not a setting to tune"),
        ({"grid": {"method.name": ["fedavg"]}}, "grid: method.name is not a setting to tune"),
        ({"grid": {"evaluation": ["x"]}}, "grid: evaluation is not a setting to tune: all runs"),
        ({"grid": {"method.nam": [1]}}, "unknown grid key 'method.nam'"),
    ],
)
def test_lists_of_the_wrong_kind_are_refused_with_a_sentence(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        plan(BASE, **({"methods": ["fedprox"], "seeds": [1]} | change))


def test_settings_that_are_no_names_do_not_tell_runs_apart() -> None:
    def config(**more: object) -> dict[str, object]:
        return {
            "method": {"name": "fedavg"},
            "seed": 1,
            "workers": 0,
            "keep": 1,
            "memory": 1,
            "data": {"partition": "iid"},
            "rounds": 2,
            **more,
        }

    assert labels(
        [config(), config(seed=2, workers=1, keep=2, memory=3, data={"partition": "x"})]
    ) == ["fedavg", "fedavg"]
    mixed = [
        config(),
        config(method={"name": "fedprox", "mu": 0.1}),
        config(method={"name": "fedprox", "mu": 0.1}, rounds=3),
    ]
    assert labels(mixed) == ["fedavg (rounds=2)", "fedprox (rounds=2)", "fedprox (rounds=3)"], (
        "another method's parameters are no difference"
    )
    local = "package.module:outer.<locals>.Mine"
    assert labels(
        [{"method": {"name": local}}, {"method": {"name": "a:Own", "weights": {"name": local}}}]
    ) == [
        "mine",
        "own + weights=mine",
    ]


def test_settings_of_one_method_change_its_runs_and_are_compared_with_the_shared_baseline() -> None:
    methods = ["fedavg", {"name": "feddc", "training": {"lr": 0.05}, "rounds": 5}]
    cells = plan({**BASE, "training": {"lr": 0.2, "batch": 7}}, methods)
    assert [cell.label for cell in cells] == ["standalone", "fedavg", "feddc"]
    alone, fedavg, feddc = (cell.experiment for cell in cells)
    assert (feddc.training.lr, feddc.training.batch, feddc.rounds) == (0.05, 7, 5)
    assert fedavg.training == alone.training
    assert {cell.alone for cell in cells} == {"standalone"}
    assert dict(cells[2].overrides) == {"training.lr": 0.05, "rounds": 5}
    assert cells[1].overrides == ()


def test_a_method_listed_with_two_settings_has_two_names() -> None:
    cells = plan(BASE, ["fedavg", {"name": "fedavg", "training": {"lr": 0.05}}])
    assert [cell.label for cell in cells] == ["standalone", "fedavg", "fedavg (training.lr=0.05)"]


@pytest.mark.parametrize(
    ("methods", "rows"),
    [
        (
            ["fedavg", {"name": "fedavg", "training": {"lr": 0.1}}],
            [("fedavg", ()), ("fedavg (training.lr=0.1)", ())],
        ),
        (
            [{"name": "kdia", "serves": ["global"]}, {"name": "kdia", "serves": ["teacher"]}],
            [("kdia", ("global",)), ("kdia", ("teacher",))],
        ),
    ],
    ids=["a default written out", "served models apart"],
)
def test_two_rows_may_show_one_run(methods: list[object], rows: list[object]) -> None:
    cells = plan(BASE, methods)[1:]
    assert [(cell.label, cell.models) for cell in cells] == rows
    assert len({cell.name for cell in cells}) == 1


def test_a_hyper_parameter_called_like_a_setting_stays_with_its_method() -> None:
    base = {**BASE, "models": {"small": "mlp", "large": "cnn"}}
    cells = plan(base, [{"name": "standalone", "model": "large"}])
    assert cells[0].experiment.build_method().model == "large"


def test_a_method_that_refuses_its_settings_is_named_and_the_others_are_planned() -> None:
    adam = {**BASE, "training": {"optimiser": "adam"}}
    planned = plan_comparison(adam, ["fedavg", "feddc", {"name": "feddc", "alpha": 1.0}])
    assert [cell.label for cell in planned.cells] == ["standalone", "fedavg"]
    assert [refusal.method for refusal in planned.refusals] == [
        "feddc (alpha=0.1)",
        "feddc (alpha=1.0)",
    ]
    assert "needs plain sgd" in planned.refusals[0].reason
    with pytest.raises(ConfigurationError, match="needs plain sgd"):
        plan_comparison(adam, ["feddc"])


def printed(*words: str) -> str:
    outcome = CliRunner().invoke(app, ["compare", *words])
    error = f"{outcome.exception}"
    return outcome.output + error


def test_a_dry_run_lists_the_folders_of_the_runs() -> None:
    words = ["--data", "digits", "--clients", "3", "--rounds", "2", "--dry-run"]
    measured = {**BASE, "evaluation": {"distances": True}}
    assert plan(BASE, ["fedavg"])[1].name in printed(*words)
    assert plan(measured, ["fedavg"])[1].name in printed(*words, "--measures", "d_cos")


def test_a_grid_key_that_is_given_twice_is_refused() -> None:
    words = ["--methods", "fedprox", "--grid", "method.mu=1", "--grid", "method.mu=2", "--dry-run"]
    assert "method.mu is given twice" in printed(*words)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"measures": ["p10_change"], "target": 0.8}, {}),
        ({"measures": ["p10_change"]}, {"target": "0.8"}),
    ],
    ids=["in the file", "on the command line"],
)
def test_a_target_adds_its_column_to_those_of_the_file(
    file: dict[str, object], words: dict[str, str]
) -> None:
    content = FromFile({**BASE, "methods": ["fedavg"], **file})
    table = prepared(content, TableOptions(**words).arguments() | {"methods": []}).table
    assert table.measures == ("p10_change", "rounds_to_target")
    assert table.target == 0.8


def test_a_method_may_not_be_measured_in_its_own_way() -> None:
    with pytest.raises(ConfigurationError, match="measured alike"):
        plan(BASE, [{"name": "fedavg", "evaluation": {"every": 2}}])
