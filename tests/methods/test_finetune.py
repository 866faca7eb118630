"""FedAvg with fine-tuning against a textbook loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise import simulate
from equipoise.methods.finetune import Finetune
from tests.helpers.counting import counted
from tests.helpers.images import NETWORKS, at, bench, net_of, own, plain_fit, play, shared
from tests.helpers.plain import assert_equal, assert_near
from tests.helpers.runs import settings, sites

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
