"""Poise as the end of another method: the base is what it would be without it, and so is the model
trained alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise import methods, simulate
from equipoise.cli import app
from equipoise.composition import IncompatibleComposition, compose
from equipoise.experiment.specifications import method_from, method_spec, spec_of
from equipoise.method import Method
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.finetune import Finetune
from equipoise.methods.groupthresholds import GroupThresholds
from equipoise.methods.kdia import KDIA
from equipoise.methods.poise import Poise
from equipoise.runs import Run
from equipoise.weighting import mixture_weights, on_simplex
from tests.helpers.callbacks import Calling
from tests.helpers.images import NETWORKS
from tests.helpers.plain import assert_equal
from tests.helpers.problems import client_states, server_state
from tests.helpers.runs import QUICK, assert_same, everything, played, settings, sites

BASES = [
    "fedavg",
    "kdia",
    "fedakd",
    "scaffold",
    "ditto",
    "fedekd",
    "fedas",
    "fedrdn",
    "fedmdfg",
    "cgsv",
    "fedproto",
    "finetune",
]
MANY = {"ada": 90, "bo": 80, "cy": 100, "di": 70}  # validation parts of ten and more
SKEW = {"ada": [0], "bo": [0, 1], "cy": [1, 2]}
END = 3  # the record of what follows two rounds


def skewed() -> dict[str, Any]:
    return dict(sites(MANY, SKEW))


def made(name: str) -> Method:
    return methods.make(name, QUICK.get(name, {}))


def ended(base: Method, out: Path, transport: Any = None, **changes: Any) -> Run:
    return played(
        settings(compose(base, finish=Poise()), rounds=2, keep=100, **changes),
        out,
        skewed(),
        transport,
    )


@pytest.mark.parametrize("name", BASES)
@pytest.mark.quick_cases("fedavg", "kdia", "fedmdfg")
def test_the_base_and_the_model_trained_alone_are_what_they_were(name: str, tmp_path: Path) -> None:
    plain = played(settings(made(name), rounds=2, keep=100), tmp_path / "plain", skewed())
    run = ended(made(name), tmp_path / "run", "loopback")
    assert_same(
        everything(plain),
        {key: value for key, value in everything(run).items() if "@poise" not in key},
    )
    inputs = {"inputs": made("fedrdn")} if name == "fedrdn" else {}
    alone = played(
        settings(compose(made("standalone"), **inputs), rounds=2, keep=100),
        tmp_path / "alone",
        skewed(),
    )
    reference = {client: own["local"] for client, own in client_states(alone).items()}
    # whose clients train `private`, which here has the architecture of `model`, too
    if name != "fedekd":
        assert {one.model for one in reference.values()} == {"model"}
    for client, own in client_states(run, 2).items():
        assert_equal(own["@poise"]["local"], reference[client])
    assert run.finish()[-1]["joined"] == run.clients and not run.rejected()
    main = "poise" if "personal" in plain.models() else "personal"
    assert run.main_model == main and set(run.models()) == {*plain.models(), main, "alone"}
    for client, own in client_states(run, END).items():
        assert on_simplex(own["@poise"]["weights"]) and np.isfinite(run.final("loss", main)[client])
        experts = 1 + len(plain.models()) + 2
        assert len(own["@poise"]["weights"]) == experts


def test_on_fedavg_it_is_poise_with_all_rounds_held_out_bit_for_bit(tmp_path: Path) -> None:
    guest, whole = (
        ended(FedAvg(), tmp_path / "a"),
        played(settings(Poise(hold=1.0, momentum=0), rounds=2, keep=100), tmp_path / "b", skewed()),
    )
    for client, own in client_states(whole, END).items():
        theirs = client_states(guest, END)[client]["@poise"]
        assert own.keys() == theirs.keys()
        for key in ("local", "tuned"):
            assert_equal(own[key], theirs[key])
        assert np.array_equal(own["weights"], theirs["weights"])
    for model in ("personal", "global", "alone"):
        assert whole.final("loss", model) == guest.final("loss", model)
    assert np.array_equal(
        server_state(whole, END).prior, server_state(guest, END)["@poise"]["prior"]
    )


def test_its_experts_are_what_the_base_serves(tmp_path: Path) -> None:
    """The weights of KDIA's student and teacher, once more from the networks that the mixture
    holds.
    """
    base = KDIA(gen_steps=4)
    config = settings(compose(base, finish=Poise(fold=False)), rounds=2, keep=100)
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    run = simulate.run(wanted, tmp_path / "run")
    federation = eq.data.federate(wanted.data, wanted.seed, wanted.dataset)
    prior = server_state(run, END)["@poise"]["prior"]
    for place, client in enumerate(run.clients):
        net = run.model("personal", client, experiment=wanted)
        assert net.head.names == ["alone", "global", "teacher", "offsets", "tuned"]
        for name in ("global", "teacher"):
            assert_equal(
                net.features[name].state_dict(), run.model(name, experiment=wanted).state_dict()
            )
        x, y = (
            part[np.array(federation.validation[place])] for part in (federation.x, federation.y)
        )
        said = net.head.experts(net.features(x)).detach().double().softmax(-1).numpy()
        q = said[np.arange(len(y)), :, y.numpy()] + 1e-12
        np.testing.assert_allclose(
            client_states(run, END)[client]["@poise"]["weights"],
            mixture_weights(q, prior, 10.0),
            atol=1e-5,
        )


@pytest.mark.thorough
def test_inputs_are_changed_for_its_experts_too(tmp_path: Path) -> None:
    composed = compose(FedAvg(), inputs=made("fedrdn"), finish=Poise())
    run = played(settings(composed, rounds=2, keep=100), tmp_path / "run", skewed())
    plain = played(
        settings(compose(FedAvg(), inputs=made("fedrdn")), rounds=2, keep=100),
        tmp_path / "plain",
        skewed(),
    )
    alone = played(
        settings(compose(made("standalone"), inputs=made("fedrdn")), rounds=2),
        tmp_path / "alone",
        skewed(),
    )
    assert run.final("loss", "global") == plain.final("loss", "global") and run.final(
        "loss", "alone"
    ) == alone.final("loss", "personal")
    folded = compose(FedAvg(), inputs=made("fedrdn"), finish=Finetune(tune_epochs=3))
    tuned = played(settings(folded, rounds=2, keep=100), tmp_path / "tuned", skewed())
    other = played(
        settings(compose(FedAvg(), finish=Finetune(tune_epochs=3)), rounds=2, keep=100),
        tmp_path / "other",
        skewed(),
    )
    assert tuned.final("loss") != other.final("loss") and tuned.main_model == "personal"


def test_clients_that_miss_its_end_make_up_for_it(tmp_path: Path) -> None:
    faults = {
        "script": [
            {"round": END, "client": "cy", "kind": "drop"},
            {"round": END, "exchange": 2, "client": "bo", "kind": "drop"},
        ]
    }
    config = settings(
        compose(KDIA(gen_steps=4), finish=Poise()),
        models={"model": NETWORKS["mlp"]},
        rounds=2,
        keep=100,
        faults=faults,
    )
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    run = simulate.run(wanted, tmp_path / "run")
    before = client_states(run, END)
    assert "weights" not in before["bo"]["@poise"] and "weights" not in before["cy"]["@poise"]
    assert run.final("loss")["cy"] == run.final("loss", "alone")["cy"] != run.final("loss")["ada"]
    late = simulate.resume(tmp_path / "run", experiment=wanted)
    after = client_states(late, END + 5)
    assert all(
        "weights" in own["@poise"] and "likelihoods" not in own["@poise"] for own in after.values()
    )
    assert_equal(after["ada"]["@poise"]["tuned"], before["ada"]["@poise"]["tuned"])


@pytest.mark.parametrize("network", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_stopped_and_resumed_it_gives_the_same_bits(network: str, tmp_path: Path) -> None:
    config = settings(
        compose(made("ditto"), finish=Poise()), models={"model": NETWORKS[network]}, rounds=3
    )
    wanted = eq.Experiment(**config, dataset=eq.from_sites(skewed()))
    whole = simulate.run(wanted, tmp_path / "whole")
    for last in (1, 3):  # in the rounds, and between the last one and the end

        def stop(record: Any, last: int = last) -> None:
            if record.round == last:
                raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            simulate.run(wanted, tmp_path / f"cut{last}", Calling(on_round=stop))
        again = simulate.resume(tmp_path / f"cut{last}", experiment=wanted)
        assert_same(everything(whole), everything(again))
        assert whole.final("loss") == again.final("loss")


@pytest.mark.parametrize(
    ("base", "guest", "reason"),
    [
        ("standalone", Poise(), "its clients share nothing"),
        ("poise", Poise(rho=2.0), "it ends so already"),
        ("fedavg", FedAvg(), "no end that stands on the rounds of another method"),
        ("fedavg", KDIA(), "such as Poise or Finetune"),
        ({"name": "finetune", "validation": True}, Poise(), "this method trains on them"),
        ("poise", GroupThresholds(), "this method trains on them"),
    ],
)
def test_what_makes_no_sense_is_refused(base: Any, guest: Method, reason: str) -> None:
    with pytest.raises(IncompatibleComposition, match=reason):
        compose(method_from(method_spec(base)), finish=guest)


def test_a_base_whose_server_has_no_model_is_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(
        IncompatibleComposition, match="PFedCK.*no model that clients could end with"
    ):
        ended(made("pfedck"), tmp_path / "run")


def test_it_travels_as_plain_data_and_has_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    composed = compose(KDIA(gen_steps=4), finish=Poise(kappa=3.0))
    spec = spec_of(composed)
    assert (
        spec["finish"]["name"] == "poise"
        and spec["finish"]["kappa"] == 3.0
        and method_from(spec) == composed
    )
    app(
        [
            "run",
            "--method",
            "kdia",
            "--finish",
            "poise",
            "--set",
            "method.finish.kappa=3",
            "--dry-run",
        ],
        standalone_mode=False,
    )
    assert "poise" in capsys.readouterr().out
    app(
        ["compare", "--methods", "fedavg,ditto", "--finish", "poise", "--seeds", "1", "--dry-run"],
        standalone_mode=False,
    )
    shown = capsys.readouterr().out
    assert (
        "fedavg + finish=poise" in shown
        and "ditto + finish=poise" in shown
        and "standalone + finish" not in shown
    )
