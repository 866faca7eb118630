"""FedAvg with fine-tuning against a textbook loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import simulate
from equipoise.composition import compose
from equipoise.data import Federation, Parts
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.finetune import Finetune
from tests.helpers.counting import counted
from tests.helpers.images import NETWORKS, at, bench, net_of, own, plain_fit, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.runs import assert_same, everything, federation_changed, settings, sites

TRAINING = {"lr": 0.05, "batch": 5, "epochs": 1, "lr_decay": 0.5}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_personal_model_is_the_global_one_trained_on_at_the_last_rounds_rate(
    network: str, tmp_path: Path
) -> None:
    run = play(Finetune(tune_epochs=3), tmp_path / "run", network, training=TRAINING)
    assert_equal(
        shared(run), shared(play("fedavg", tmp_path / "plain", network, training=TRAINING))
    )
    workbench, _ = bench(Finetune(), network, training=TRAINING)
    for client, tuned in own(run, "tuned", 4).items():
        net = net_of(workbench, shared(run))  # type: ignore[arg-type]
        plain_fit(
            net,
            at(workbench, client).train,
            torch.optim.SGD(net.parameters(), lr=0.0125),
            client,
            4,
            epochs=3,
            purpose="tune",
        )
        assert_near(tuned, net.state_dict(), 1e-5)
    assert set(own(run, "tuned", 4)) == set(run.clients) and not own(run, "tuned", 3)


@pytest.mark.parametrize("network", NETWORKS)
def test_with_averaging_it_is_the_mean_after_each_epoch_of_the_second_half(
    network: str, tmp_path: Path
) -> None:
    method = Finetune(tune_epochs=5, tune_average="second_half")
    run = play(method, tmp_path / "run", network, training=TRAINING)
    paths = {}
    for epochs in (3, 4, 5):
        shorter = Finetune(tune_epochs=epochs)
        paths[epochs] = own(
            play(shorter, tmp_path / str(epochs), network, training=TRAINING), "tuned", 4
        )
    for client, mean in own(run, "tuned", 4).items():
        for name, tensor in mean.items():
            models = torch.stack([paths[epochs][client][name].double() for epochs in (3, 4, 5)])
            expected = models.mean(0) if tensor.is_floating_point() else models.amax(0)
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)


def test_one_epoch_is_its_own_mean(tmp_path: Path) -> None:
    averaged = Finetune(tune_epochs=1, tune_average="second_half")
    plain = own(play(Finetune(tune_epochs=1), tmp_path / "plain"), "tuned", 4)
    mean = own(play(averaged, tmp_path / "averaged"), "tuned", 4)
    for client, tuned in plain.items():
        assert_equal(mean[client], tuned)


def test_with_validation_data_it_trains_on_both_parts_in_rounds_and_in_tuning(
    tmp_path: Path,
) -> None:
    def joined(federation: Federation) -> Federation:
        both = [
            np.concatenate(pair)
            for pair in zip(federation.train, federation.validation, strict=True)
        ]
        return replace(federation, train=Parts.of(both))

    # Weights by size count training samples only.
    equal: dict[str, Any] = {"average": "uniform", "tune_epochs": 2}
    run = play(Finetune(validation=True, **equal), tmp_path / "run")
    with federation_changed(joined):
        reference = play(Finetune(**equal), tmp_path / "reference")
    assert_same(everything(run), everything(reference))
    other = play(Finetune(**equal), tmp_path / "other")
    assert run.final("loss") != other.final("loss")


def test_as_the_end_of_another_method_only_tuning_sees_validation_data(tmp_path: Path) -> None:
    plain = play("fedavg", tmp_path / "plain")
    guest = Finetune(tune_epochs=2, validation=True)
    run = play(compose(FedAvg(), finish=guest), tmp_path / "run")
    assert_equal(shared(run), shared(plain))
    with_less = compose(FedAvg(), finish=Finetune(tune_epochs=2))
    assert run.final("loss") != play(with_less, tmp_path / "less").final("loss")
    assert run.held_out_rounds == 3 and plain.held_out_rounds is None


def test_it_is_what_clients_serve_and_costs_its_epochs(tmp_path: Path) -> None:
    wanted = eq.Experiment(
        **settings(Finetune(tune_epochs=2), rounds=2), dataset=eq.from_sites(dict(sites()))
    )
    with counted() as passes:
        run = simulate.run(wanted, tmp_path / "run")
    assert passes["client", "gradient"] == (2 + 2) * sum(run.store.meta("sizes")["train"])
    assert run.main_model == "personal" and run.final("loss") != run.final("loss", "global")
    assert_equal(
        run.model("personal", "bo", experiment=wanted).state_dict(), own(run, "tuned", 3)["bo"]
    )
