"""What a comparison sets out to run."""

from __future__ import annotations

import pytest

from equipoise.comparison.labels import labels
from equipoise.comparison.plan import default_folder, plan
from equipoise.experiment import Experiment
from equipoise.methods.fedprox import FedProx

BASE = {"rounds": 2, "data": {"name": "digits", "clients": 3}}


def test_standalone_is_added_once_and_shared_by_all_methods():
    cells = plan(BASE, ["fedavg", "fedprox"], seeds=[1, 2], partitions=["iid", "dirichlet:0.5"])
    alone = [cell for cell in cells if cell.label == "standalone"]
    assert len(cells) == 12 and len(alone) == 4
    for cell in cells:
        reference = next(other for other in alone if other.name == cell.alone)
        assert (reference.partition, reference.seed) == (cell.partition, cell.seed)


def test_a_tuned_learning_rate_has_its_own_reference():
    cells = plan(BASE, ["fedavg"], seeds=[1], grid={"training.lr": [0.1, 0.01]})
    for cell in cells:
        reference = next(other for other in cells if other.name == cell.alone)
        assert reference.label == "standalone" and reference.experiment.training == cell.experiment.training
    assert len({cell.alone for cell in cells}) == 2


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
    from_object = plan(Experiment(rounds=2, data={"name": "digits", "clients": 3}), ["fedavg"], seeds=[3])
    assert [cell.name for cell in from_object] == [cell.name for cell in plan(BASE, ["fedavg"], seeds=[3])]


def test_several_models_standalone_trains_the_one_that_clients_keep():
    cells = plan({**BASE, "models": {"proxy": "mlp", "private": "cnn"}}, ["fedekd"], seeds=[1])
    assert cells[0].experiment.build_method().model == "private"


def test_the_default_folder_is_the_same_for_more_methods_or_seeds_and_another_for_other_settings():
    assert default_folder(BASE) == default_folder({**BASE, "method": "fedprox", "seed": 7})
    assert default_folder(BASE) != default_folder({**BASE, "rounds": 3})


def test_labels_tell_apart_what_differs():
    configs = [{"method": {"name": "fedavg"}, "rounds": 2, "seed": 1}, {"method": {"name": "fedavg"}, "rounds": 5, "seed": 2}]
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
