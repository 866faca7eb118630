"""Models into a run and out of it: several, one's own, per client; as modules, files and
predictions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import equipoise as eq
from equipoise.methods.standalone import Standalone
from equipoise.runs.export import export, predictions
from equipoise.storage.store import RunError
from equipoise.task import Task
from equipoise.training import Training
from equipoise.training.workbench import Workbench, factories, prefers_channels_last
from tests.helpers.plain import assert_equal
from tests.helpers.problems import client_states, server_state
from tests.helpers.runs import folder_of, played, settings, sites


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU())
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.features(x))
        return outputs


def whole() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (TwoParts(), {"features.1.weight", "features.1.bias", "head.weight", "head.bias"}),
        (TwoParts, {"features.1.weight", "features.1.bias", "head.weight", "head.bias"}),
        (whole(), {"features.1.weight", "features.1.bias"}),
        (whole, {"features.1.weight", "features.1.bias"}),
    ],
    ids=["parts", "class of parts", "whole", "function"],
)
def test_a_module_of_the_users_is_trained_and_comes_back(
    tmp_path: Path, model: Any, names: set[str]
) -> None:
    config = settings("fedavg", models={"model": model}, rounds=2)
    before = (
        {name: value.clone() for name, value in model.state_dict().items()}
        if isinstance(model, nn.Module)
        else {}
    )
    run = played(config, tmp_path / "run")
    assert set(server_state(run).model) == names
    with pytest.raises(
        RunError,
        match=r"its model is a Python object; call run.model\(..., experiment=experiment\)",
    ):
        eq.Run(run.folder).model("global")
    net = eq.Run(run.folder).model("global", experiment=eq.Experiment(**config))
    assert_equal(run.model("global").state_dict(), net.state_dict())  # just returned: it has it
    assert_equal(net.state_dict(), server_state(run).model)
    assert not net.training and net(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items()), (
        "the user's own object is left alone"
    )


def test_a_module_keeps_the_weights_it_came_with(tmp_path: Path) -> None:
    given = TwoParts()
    run = played(settings("fedavg", models={"model": given}, rounds=1, keep=100), tmp_path / "run")
    assert_equal(server_state(run, 0).model, given.state_dict())


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_models_come_out_as_modules(tmp_path: Path, method: str) -> None:
    run = played(settings(method, "cnn", rounds=2), tmp_path / "run")
    if method == "fedavg":
        assert run.main_model == "global"
        assert_equal(run.model("global").state_dict(), server_state(run).model)
        with pytest.raises(RunError, match=r"no model 'personal' in .*; its method serves global"):
            run.model("personal", client="bo")
    else:
        assert run.main_model == "personal"
        for client, state in client_states(run).items():
            assert_equal(run.model("personal", client=client).state_dict(), state["local"])
        with pytest.raises(
            RunError,
            match=(
                "model 'personal' belongs to a client; say which with --client .in Python "
                "client=., 'ada', say"
            ),
        ):
            run.model("personal")
        with pytest.raises(RunError, match=r"no client 'zoe' in .*; it has ada, bo, cy, di"):
            run.model("personal", client="zoe")


def test_the_measured_model_is_the_one_that_comes_out(tmp_path: Path) -> None:
    run = eq.run(
        settings(
            "fedavg",
            "cnn",
            data={"name": folder_of(tmp_path / "sites", sites()), "split": (0.7, 0.15, 0.15)},
        ),
        tmp_path / "run",
    )
    from equipoise.data import DataConfig, federate

    federation = federate(DataConfig(**run.config["data"]), run.config["seed"])
    net = run.model("global")
    for place, client in enumerate(federation.ids):
        own = torch.from_numpy(federation.test[place].copy())
        right = (net(federation.x[own]).argmax(1) == federation.y[own]).double().mean()
        assert run.final()[client] == pytest.approx(float(right))


def test_several_models_and_clients_with_their_own(tmp_path: Path) -> None:
    models = {
        "proxy": {"name": "mlp", "hidden": [5]},
        "private": {"name": "mlp", "hidden": [4], "clients": {"bo": "cnn", "cy": whole()}},
    }
    config = settings(Standalone(model="private"), models=models, rounds=1)
    run = played(config, tmp_path / "run")
    trees = {client: state["local"] for client, state in client_states(run).items()}
    assert {client: tree.model for client, tree in trees.items()} == {
        "ada": "private",
        "bo": "private@bo",
        "cy": "private@cy",
        "di": "private",
    }
    assert trees["ada"]["features.1.weight"].shape == (4, 64) and trees["cy"][
        "features.1.weight"
    ].shape == (3, 64)
    assert any(name.endswith("running_mean") for name in trees["bo"])
    again = eq.Experiment(**config)
    for client, tree in trees.items():
        assert_equal(run.model("personal", client=client, experiment=again).state_dict(), tree)


def test_a_model_for_an_unknown_client_or_of_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"unknown client under models.model.clients 'boo'; did you mean 'bo'?"
    ):
        played(
            settings("standalone", models={"model": {"name": "mlp", "clients": {"boo": "cnn"}}}),
            tmp_path / "a",
        )
    with pytest.raises(ValueError, match=r"unknown model 'mpl'; did you mean 'mlp'"):
        played(settings("fedavg", models={"model": "mpl"}), tmp_path / "b")
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists(), (
        "nothing is left of a run that never began"
    )


@pytest.mark.parametrize(("method", "client"), [("fedavg", None), ("standalone", "bo")])
def test_export_writes_weights_and_a_card(tmp_path: Path, method: str, client: str | None) -> None:
    run = played(settings(method, rounds=1), tmp_path / "run")
    path, card = export(run, client=client, out=tmp_path / "models" / "mine.safetensors")
    assert_equal(load_file(path), run.model(run.main_model, client).state_dict())
    text = card.read_text()
    assert card == tmp_path / "models" / "mine.md"
    for fact in (
        f"'name': '{method}'",
        "partition natural",
        "4 clients, seed 7",
        "1 of 1",
        "classification, input (1, 8, 8), 3 outputs",
        "torch",
    ):
        assert fact in text
    assert (f"bo: {run.final()['bo']:.4f}" in text) and (client is None or "ada:" not in text)
    assert export(run, client=client)[0] == run.folder / (
        "global.safetensors" if client is None else "personal-bo.safetensors"
    )


def test_predictions_are_the_models(tmp_path: Path) -> None:
    data = sites()
    run = eq.run(
        settings(
            "fedavg",
            "cnn",
            data={"name": folder_of(tmp_path / "sites", data), "split": (0.7, 0.15, 0.15)},
            rounds=1,
        ),
        tmp_path / "run",
    )
    header, rows = predictions(run, tmp_path / "sites" / "bo.npz")
    shares = run.model("global")(torch.from_numpy(data["bo"][0])).softmax(1).detach()
    assert header == ["sample", "prediction", "p(0)", "p(1)", "p(2)"]
    assert [row[0] for row in rows] == list(range(len(shares))) and [
        int(row[1]) for row in rows
    ] == shares.argmax(1).tolist()
    np.testing.assert_allclose([row[2:] for row in rows], shares, atol=1e-5)
    with pytest.raises(RunError, match=r"no file .*nothing.npz; give a CSV or NPZ file"):
        predictions(run, tmp_path / "nothing.npz")


def test_predictions_of_a_table_use_the_scaling_of_the_client(tmp_path: Path) -> None:
    """A regression on two sites whose column has another scale at each: the same prepared value,
    the same prediction.
    """
    (tmp_path / "sites").mkdir()
    for name, scale in (("near", 1.0), ("far", 100.0)):
        lines = [f"{scale * k},{k / 7 + 0.05}" for k in range(30)]
        (tmp_path / "sites" / f"{name}.csv").write_text("\n".join(["dose,outcome", *lines]))
    data = {"name": str(tmp_path / "sites"), "label": "outcome", "split": (1.0, 0.0, 0.0)}
    run = eq.run(settings("fedavg", data=data, rounds=3), tmp_path / "run")
    (tmp_path / "new.csv").write_text("dose\n0\n29\n")
    (tmp_path / "new100.csv").write_text("dose\n0\n2900\n")
    header, near = predictions(run, tmp_path / "new.csv", client="near")
    _, far = predictions(run, tmp_path / "new100.csv", client="far")
    assert header == ["sample", "prediction"] and near[0][1] != near[1][1]
    np.testing.assert_allclose(np.array(near), np.array(far), atol=1e-5)


def test_the_layout_follows_from_network_and_data_and_trees_do_not_show_it() -> None:
    pictures, table = Task("classification", (3, 8, 8), 2), Task("classification", (8,), 2)
    with_convolution = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    without = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    assert prefers_channels_last(with_convolution, pictures)
    assert not prefers_channels_last(without, pictures) and not prefers_channels_last(
        with_convolution, table
    )
    bench = Workbench(
        pictures, factories({"model": with_convolution}, pictures), Training(), seed=0
    )
    model = bench.take("model")
    weight = next(p for p in model.trained.values() if p.dim() == 4)
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    assert all(tensor.is_contiguous() for tensor in model.tree().values())
