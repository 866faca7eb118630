"""Training on validation data after they have judged, in both forms; regression; survival."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import equipoise as eq
from equipoise import simulate
from equipoise.client import Client
from equipoise.data import Federation, Parts
from equipoise.experiment.build import prepare
from equipoise.methods.poise import Poise
from equipoise.runs import Run
from equipoise.weighting import mixture_weights, simplex_grid
from tests.helpers.counting import counted
from tests.helpers.images import NETWORKS, play
from tests.helpers.plain import assert_equal
from tests.helpers.problems import client_states, server_state
from tests.helpers.runs import (
    CLASSES,
    assert_same,
    config,
    everything,
    settings,
    sites,
    stopped,
)

MANY = {"ada": 90, "bo": 80, "cy": 100, "di": 70}
END = 4


def skewed() -> dict[str, Any]:
    return dict(sites(MANY, {"ada": [0], "bo": [0, 1], "cy": [1, 2]}))


def together(federation: Federation) -> Federation:
    """Training and validation data as training data."""
    both = [
        np.concatenate(pair) for pair in zip(federation.train, federation.validation, strict=True)
    ]
    return replace(federation, train=Parts.of(both))


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_of_the_first_form_what_is_served_was_trained_on_validation_data_and_the_weights_not(
    network: str, tmp_path: Path
) -> None:
    plain, run = (
        play(Poise(variant="one", fold=fold), tmp_path / str(fold), network, on=skewed())
        for fold in (False, True)
    )
    wanted = eq.Experiment(
        **settings(Poise(variant="one"), models={"model": NETWORKS[network]}),
        dataset=eq.from_sites(skewed()),
    )
    federation = together(eq.data.federate(wanted.data, wanted.seed, wanted.dataset))
    bench, _ = prepare(wanted, federation.task, federation.ids, federation)
    shared = server_state(run, END).model
    for client, own in client_states(run, END).items():
        before = client_states(plain, END)[client]
        assert torch.equal(own["weights"], before["weights"]), (
            "validation data must not judge what was trained on them"
        )
        assert_equal(own["local"], before["local"])
        there = Client(bench, client, END, 3, {})
        for name, start, purpose in (
            ("tuned", shared, "tune"),
            ("alone", own["local"], "tune alone"),
        ):
            model = there.load(start)
            there.fit(model, epochs=5, purpose=purpose)
            assert_equal(own[name], model.tree())
        with torch.no_grad():
            p = (there.predict(there.load(shared)).double() + own["offsets"]).softmax(1)
        counts = torch.bincount(there.train.y, minlength=CLASSES).double()
        torch.testing.assert_close(p.sum(0) + own["offsets"], counts, rtol=0, atol=1e-4)
        assert not torch.equal(own["offsets"], before["offsets"])
    assert run.final("loss", "alone") == plain.final("loss", "alone") and run.final(
        "loss"
    ) != plain.final("loss")


@pytest.mark.parametrize("variant", ["one", "two"])
def test_what_folding_costs(variant: Any, tmp_path: Path) -> None:
    with counted() as passes:
        run = play(
            Poise(variant=variant, tune_steps=0, hold=0.667, spend=False),
            tmp_path / "run",
            on=skewed(),
            training={"lr": 0.05, "batch": 5, "epochs": 2},
            rounds=3,
        )
    train, validation = (sum(run.store.meta("sizes")[part]) for part in ("train", "validation"))
    # The first form tunes both models at the end. The second trains both on all data in round 3.
    on_all = {"one": 2 * 5, "two": 2 * 2 + 5}[variant]
    on_training = {"one": 2 * 6 + 5, "two": 2 * 4 + 5}[variant]
    assert passes["client", "gradient"] == on_training * train + on_all * (train + validation)


def test_validation_data_come_back_as_they_were() -> None:
    wanted = eq.Experiment(**settings(Poise()), dataset=eq.from_sites(skewed()))
    federation = eq.data.federate(wanted.data, wanted.seed, wanted.dataset)
    client = Client(prepare(wanted, federation.task, federation.ids, federation)[0], "bo", 1, 1, {})
    apart = len(client.train), len(client.validation)
    with pytest.raises(RuntimeError, match="on the way"), client.training_on_all():
        assert len(client.train) == sum(apart) and len(client.validation) == apart[1]
        raise RuntimeError("on the way")
    assert (len(client.train), len(client.validation)) == apart


@pytest.mark.parametrize("as_finish", [False, True])
@pytest.mark.parametrize(
    ("defaults", "former"),
    [
        (1, {"variant": "one"}),
        (2, {"hold": 0.667, "momentum": 0.0, "spend": False}),
    ],
)
def test_a_run_that_was_begun_with_former_defaults_continues_with_them(
    defaults: int, former: dict[str, Any], as_finish: bool, tmp_path: Path
) -> None:
    """The file of a run names only the parameters that were given."""
    poise = {"name": "poise", **former}
    method = {"name": "fedavg", "finish": poise} if as_finish else poise
    folder = stopped(tmp_path, method)
    file = folder / "experiment.yaml"
    stored = yaml.safe_load(file.read_text())
    given = stored["method"]["finish"] if as_finish else stored["method"]
    for name in former:
        del given[name]
    file.write_text(yaml.safe_dump(stored, sort_keys=False))
    with sqlite3.connect(folder / "run.db") as database:
        database.execute("update meta set value = ? where key = 'defaults'", (str(defaults),))
    database.close()
    resumed = eq.resume(folder)
    found = resumed.config["method"]
    assert former.items() <= dict(found.get("finish", found)).items()
    whole = eq.run(eq.Experiment(**config(tmp_path, method)), out=tmp_path / "whole")
    assert_same(everything(whole), everything(resumed))


# Numbers.


def numbers(**changes: Any) -> tuple[eq.Experiment, dict[str, Any]]:
    """Sites whose numbers follow one slope from different levels."""
    draw = np.random.default_rng(3)
    data = {}
    for place, (name, size) in enumerate(MANY.items()):
        x = draw.standard_normal((size, 5)).astype(np.float32)
        data[name] = (
            x,
            (10 + 3 * (x @ np.arange(5)) + 4 * place + draw.standard_normal(size)).astype(
                np.float32
            ),
        )
    config = {
        **settings(changes.pop("method", Poise()), **changes),
        "data": {"split": (0.6, 0.2, 0.2), "partition": "natural"},
    }
    config["models"] = {"model": {"name": "mlp", "hidden": [6]}}
    return eq.Experiment(**config, dataset=eq.from_sites(data, kind="regression")), data


def test_of_numbers_the_experts_are_weighed_by_gaussians_and_their_mean_is_served(
    tmp_path: Path,
) -> None:
    wanted, _ = numbers(method=Poise(fold=False), keep=100)
    run = simulate.run(wanted, tmp_path / "run")
    federation = eq.data.federate(wanted.data, wanted.seed, wanted.dataset)
    q, grid = {}, simplex_grid(4)
    for place, client in enumerate(run.clients):
        own, inner = (
            client_states(run, END)[client],
            run.model("personal", client, experiment=wanted),
        )
        x, y = (
            part[np.array(federation.validation[place])] for part in (federation.x, federation.y)
        )
        with torch.no_grad():
            each = {name: one(x)[:, 0].double().numpy() for name, one in inner.features.items()}
            train = [
                part[np.array(federation.train[place])] for part in (federation.x, federation.y)
            ]
            gaps = (train[1] - inner.features["global"](train[0])[:, 0]).double()
        assert float(own["offsets"]) == pytest.approx(float(gaps.sum() / (len(gaps) + 1)), abs=1e-6)
        means = [
            each["alone"],
            each["global"],
            each["global"] + float(own["offsets"]),
            each["tuned"],
        ]
        rows = []
        for mean in means:
            errors = y.double().numpy() - mean
            variance = np.mean(errors**2)
            rows.append(
                np.exp(-(errors**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance) + 1e-12
            )
        q[client] = np.stack(rows, 1)
        with torch.no_grad():
            said = (inner(x)[:, 0].double().numpy() - run.task.centre) / run.task.scale
        np.testing.assert_allclose(
            said, np.einsum("j,ji->i", own["weights"].numpy(), means), atol=1e-5
        )
    posteriors = []
    for rows in q.values():
        logs = np.log(rows @ grid.T).sum(0)
        posteriors.append(np.exp(logs - logs.max()) @ grid / np.exp(logs - logs.max()).sum())
    prior = server_state(run, END).prior.numpy()
    np.testing.assert_allclose(prior, np.mean(posteriors, axis=0), atol=1e-5)
    for client, rows in q.items():
        np.testing.assert_allclose(
            client_states(run, END)[client]["weights"],
            mixture_weights(rows, prior, 10.0),
            atol=1e-4,
        )


def test_of_numbers_too_the_global_expert_alone_is_fedavg(tmp_path: Path) -> None:
    only, _ = numbers(
        method=Poise(alone=False, offsets=False, tune_epochs=0, fold=False, momentum=0)
    )
    plain, _ = numbers(method="fedavg")
    both = [
        simulate.run(wanted, tmp_path / str(place)) for place, wanted in enumerate((only, plain))
    ]
    assert both[0].final() == pytest.approx(both[1].final(), rel=1e-6)


def test_without_validation_data_numbers_weigh_alike(tmp_path: Path) -> None:
    wanted, data = numbers()
    config = {**wanted.model_dump(), "data": {"split": (0.8, 0.0, 0.2), "partition": "natural"}}
    run: Run = simulate.run(
        eq.Experiment(**config, dataset=eq.from_sites(data, kind="regression")), tmp_path / "run"
    )
    assert all(own["weights"].tolist() == [0.25] * 4 for own in client_states(run, END).values())
