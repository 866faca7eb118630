"""The tools of the contract's checks by themselves: what counts as the same, what a method could
reach, and what each check asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from equipoise.data import federate, from_sites
from equipoise.experiment import Experiment
from equipoise.method import Method, Ups
from equipoise.records import Record, State, Up, write
from equipoise.task import Task
from equipoise.testing import ContractBroken, Result, check_method, reachability, small
from equipoise.testing.checks import Case
from equipoise.testing.reachability import Rows, probing, reachable
from equipoise.testing.small import Broken, assert_same, finite, flat, settings, sites
from equipoise.tree import Tree

# Small federations.


def test_small_sites_have_the_sizes_and_labels_asked_for_and_a_class_to_learn() -> None:
    found = sites({"a": 300, "b": 7}, {"b": [2]}, seed=3)
    assert {name: (x.shape, x.dtype, y.shape, y.dtype) for name, (x, y) in found.items()} == {
        "a": ((300, 1, 8, 8), np.dtype(np.float32), (300,), np.dtype(np.int64)),
        "b": ((7, 1, 8, 8), np.dtype(np.float32), (7,), np.dtype(np.int64)),
    }
    x, y = found["a"]
    assert set(y.tolist()) == {0, 1, 2} and set(found["b"][1].tolist()) == {2}
    ramp = np.linspace(-1, 1, 64).reshape(8, 8)
    for c in range(3):
        np.testing.assert_allclose(x[y == c].mean(0)[0], c * ramp, atol=0.15)
    assert (x[:, 0] - y[:, None, None] * ramp).std() == pytest.approx(0.3, rel=0.05)


def test_small_sites_follow_from_their_seed() -> None:
    first, again, other = sites(), sites(seed=0), sites(seed=1)
    assert {name: len(y) for name, (_, y) in first.items()} == {
        "ada": 24,
        "bo": 13,
        "cy": 18,
        "di": 9,
    }
    assert all(np.array_equal(first[name][0], again[name][0]) for name in first)
    assert not np.array_equal(first["ada"][0], other["ada"][0])


@dataclass(frozen=True)
class Trained(Method):
    pass


@dataclass(frozen=True)
class Untrained(Method):
    trains: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("method", "network", "name"),
    [
        ("fedavg", "mlp", "mlp"),
        ("fedavg", "cnn", "cnn"),
        ({"name": "fedavg"}, "cnn", "cnn"),
        (Trained(), "cnn", "cnn"),
        (Untrained(), "cnn", "proxy_cnn"),
        (Untrained(), "mlp", "mlp"),
    ],
)
def test_a_network_with_batch_norm_is_for_methods_that_train(
    method: Any, network: str, name: str
) -> None:
    found = settings(method, network, rounds=9)
    assert (
        found["models"]["model"]["name"] == found["models"]["private"]["name"] == name
        and found["method"] == method
    )
    assert (found["rounds"], settings(method, network)["rounds"], found["workers"]) == (9, 3, 0)
    assert settings(method)["models"]["model"] == {"name": "mlp", "hidden": [6]}
    wanted = Experiment(**found, dataset=from_sites(sites()))
    assert wanted.training.epochs == 1 and wanted.training.batch < min(
        federate(wanted.data, 7, wanted.dataset).train.sizes
    )


# What is the same.


def test_values_inside_of_mappings_trees_and_lists_are_named_by_their_way() -> None:
    given = {"a": [1, {"b": 2}], "t": Tree({"w": torch.ones(1)}), "e": {}, "n": None}
    assert flat(given, "s") == {"s/a/0": 1, "s/a/1/b": 2, "s/t/w": torch.ones(1), "s/n": None}
    assert flat(3) == {"": 3} and flat([4]) == {"/0": 4}


def test_all_that_a_run_has_learnt_is_the_servers_and_every_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, disk = tmp_path / "files", tmp_path / "disk"
    for folder, value in ((files, 1), (disk, 2)):
        (folder / "clients").mkdir(parents=True)
        write(Record(seen=value, _private=3), folder / "clients" / "ada.safetensors")
    path = files / "clients" / "ada.safetensors"
    store = SimpleNamespace(
        files=files, current=lambda kind: {"ada": (path, 5, 6)} if kind == "client" else {}
    )
    monkeypatch.setattr(
        small, "load_server", lambda given: State(rounds=4) if given is store else None
    )
    run: Any = SimpleNamespace(store=store)
    assert small.everything(run) == {"server/rounds": 4, "client ada/seen": 1}
    assert small.everything(run, disk) == {"server/rounds": 4, "client ada/seen": 2}


ONE, TWO = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.25])


@pytest.mark.parametrize(
    ("first", "second", "close", "reason"),
    [
        ({"a": ONE}, {"a": ONE.clone()}, 0.0, None),
        ({"a": ONE}, {"a": TWO}, 0.0, "^a differs by 0.25 between two runs$"),
        ({"a": TWO}, {"a": ONE}, 0.01, "^a differs by 0.25 between two runs, more than 0.01$"),
        ({"a": ONE}, {"a": TWO}, 0.2, None),
        (
            {"a": ONE},
            {"a": ONE.double()},
            1.0,
            r"^a is torch.float32 of shape \(2,\) in one run and torch.float64 of shape \(2,\)",
        ),
        (
            {"a": ONE},
            {"a": ONE[:1]},
            1.0,
            r"shape \(2,\) in one run and torch.float32 of shape \(1,\) in another",
        ),
        ({"a": ONE}, {"a": 1.0}, 9.0, "^a is tensor.* in one run and 1.0 in another"),
        ({"a": 1.0}, {"a": ONE}, 9.0, "^a is 1.0 in one run and tensor"),
        ({"a": 1.0}, {"a": torch.tensor(1.0)}, 0.0, "^a is 1.0 in one run and tensor"),
        ({"a": 1.0}, {"a": 1.25}, 0.0, "^a is 1.0 in one run and 1.25 in another"),
        ({"a": 1.0}, {"a": 1.25}, 0.25, None),
        ({"a": 1.0}, {"a": 1.25}, 0.2, "^a is 1.0"),
        ({"a": 4.0}, {"a": 5.0}, 0.25, None),
        ({"a": -4.0}, {"a": -5.0}, 0.25, None),
        ({"a": 0.125}, {"a": 0.25}, 0.125, None),
        ({"a": 1}, {"a": 2}, 9.0, "^a is 1 in one run and 2 in another"),
        ({"a": "x"}, {"a": "x"}, 0.0, None),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, 0.0, "^only one of two runs has b, c"),
        ({"a": 1}, {}, 0.0, "^only one of two runs has a"),
        ({}, {}, 0.0, "nothing was learnt"),
        ({"a": 1, "b": 2}, {"b": 3, "a": 1}, 0.0, "^b is 2 in one run and 3"),
    ],
)
def test_the_same_names_and_values(
    first: dict[str, Any], second: dict[str, Any], close: float, reason: str | None
) -> None:
    if reason is None:
        assert_same(first, second, close)
    else:
        with pytest.raises(Broken, match=reason):
            assert_same(first, second, close)


def test_without_a_tolerance_every_bit_counts() -> None:
    with pytest.raises(Broken, match="differs by"):
        assert_same({"a": torch.tensor([1.0])}, {"a": torch.tensor([1.0000001])})


@pytest.mark.parametrize(
    ("learnt", "status", "reason"),
    [
        ({"a": ONE, "n": torch.tensor([3]), "s": "text"}, "finished", None),
        (
            {"a": ONE, "b": torch.tensor([1.0, float("nan")])},
            "finished",
            "^b holds values that are not finite",
        ),
        ({"a": torch.tensor([float("inf")])}, "finished", "^a holds"),
        ({"a": ONE}, "interrupted", "the run is interrupted, not finished"),
    ],
)
def test_a_run_is_finite_if_all_that_it_learnt_is(
    learnt: dict[str, Any], status: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "everything", lambda run: learnt)
    if reason is None:
        finite(SimpleNamespace(status=status))  # type: ignore[arg-type]
    else:
        with pytest.raises(Broken, match=reason):
            finite(SimpleNamespace(status=status))  # type: ignore[arg-type]


# What came of the checks.


def test_results_are_told_in_words() -> None:
    assert str(Result("one", "mlp", "passed")) == "passed one (mlp)"
    assert str(Result("one", "mlp", "failed", "because")) == "failed one (mlp): because"


def test_every_failure_is_counted_and_the_first_is_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(case: Case) -> None:
        raise KeyError("lost") if case.network == "cnn" else Broken("wrong")

    seen: list[Result] = []
    tolerances: list[float] = []
    monkeypatch.setattr("equipoise.testing._refusal", lambda method, network, folder: "")
    monkeypatch.setattr(
        "equipoise.testing.CHECKS",
        {"good": lambda case: tolerances.append(case.tolerance), "bad": fails},
    )
    with pytest.raises(ContractBroken) as caught:
        check_method(Trained, checks=["good", "bad"], on_result=seen.append)
    assert (
        str(caught.value)
        == "Trained fails 2 of 4 checks:\nfailed bad (mlp): wrong\nfailed bad (cnn): KeyError: 'lost'"
    )
    assert caught.value.results == seen and isinstance(caught.value.__cause__, Broken)
    assert [one.outcome for one in check_method(Trained, checks=["bad"], raise_errors=False)] == [
        "failed"
    ] * 2
    assert [
        one.outcome
        for one in check_method(Trained, checks=["good"], networks=["mlp"], tolerance=0.5)
    ] == ["passed"]
    assert tolerances == [2e-4, 2e-4, 0.5]


# What a method could reach.


ROWS = np.array([[1.0, 2.0, 3.0], [1.0, 5.0, 6.0]], np.float32)


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (torch.tensor([9.0, 1.0, 5.0, 6.0]), True),
        (torch.tensor([9.0, 1.0, 2.0, 3.0, 1.0])[:1], True),  # a slice leads to the whole
        (torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True), True),
        (np.array([0, 1, 2, 3], np.float32), True),
        (torch.tensor([1.0, 2.0, 4.0, 3.0, 1.0, 5.0]), False),
        (torch.tensor([1.0, 2.0]), False),
        (torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), False),
        (torch.tensor([1, 2, 3]), False),
        (torch.zeros(0), False),
    ],
)
def test_a_row_is_found_anywhere_in_the_memory_of_a_tensor(found: Any, held: bool) -> None:
    assert Rows(ROWS).are_in(found) is held


class Slotted:
    __slots__ = ("inner", "unset")


class Propertied:
    @property
    def made(self) -> torch.Tensor:
        return torch.ones(1)


@dataclass(frozen=True)
class Giving(Method):
    kept: ClassVar[list[Any]] = [torch.zeros(1)]

    @property
    def own(self) -> torch.Tensor:
        return torch.ones(2)

    @property
    def broken(self) -> torch.Tensor:
        raise RuntimeError("nothing to give")


def paths(one: Any) -> set[str]:
    return {path for path, _ in reachable({"x": one})}


def test_ways_to_a_tensor() -> None:
    t, a = torch.ones(1), np.ones(1)
    slotted = Slotted()
    slotted.inner = t
    assert paths(t) == paths(a) == {"x"}
    assert paths({"k": t, 3: [a]}) == {"x['k']", "x[3][0]"}
    assert paths(SimpleNamespace(_private=SimpleNamespace(t=t))) == {"x._private.t"}
    assert paths(slotted) == {"x.inner"}
    assert paths(partial(print, t, end=a)) == {"x.args[0]", "x.keywords['end']"}
    assert paths(SimpleNamespace(t=t).__eq__) == {"x.__self__.t"}
    for record in (
        Ups([("ada", Up(v=t)), ("bo", None)]),
        State(model=Tree({"w": t})),
        {t},
        (t,),
        frozenset([t]),
    ):
        assert [found for _, found in reachable({"x": record})] == [t]
    assert paths(Propertied()) == set(), "properties of strangers are not followed"
    assert paths(Giving()) == {"x.own", "x.kept[0]"}
    assert paths([1, "text", None, 2.5, print, np, Slotted, torch.Generator(), lambda: t]) == set()


def test_a_circle_is_walked_once() -> None:
    ring: list[Any] = [torch.ones(1)]
    ring.append(ring)
    assert [path for path, _ in reachable({"x": ring})] == ["x[0]"]


class Endless:
    def __init__(self) -> None:
        self.__dict__ = Following()


class Following(dict[str, Any]):
    def items(self) -> Any:
        return [("next", Endless())]


def test_a_way_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "MAX_OBJECTS", 20)
    with pytest.raises(RuntimeError, match=r"^x(\.next)+ leads to an endless"):
        list(reachable({"x": Endless()}))


def test_a_probed_method_is_the_same_method_with_a_look_at_what_it_is_given() -> None:
    @dataclass(frozen=True)
    class Own(Method):
        rate: float = 0.5

        def check(self, task: Task) -> None:
            raise ValueError(f"{self.rate} is not for {task.kind}")

        def observe(self, server: Any, state: State, ups: Any) -> State:
            return State(rate=self.rate, seen=ups)

    looks: list[dict[str, Any]] = []
    probed = probing(Own(0.25), lambda given: looks.append(dict(given)))
    assert probed.rate == 0.25 and isinstance(probed, Own) and type(probed).__name__ == "Own"
    assert probed.observe("server", State(), "ups") == State(rate=0.25, seen="ups")
    assert looks == [{"method": probed, "server": "server", "state": State(), "ups": "ups"}]
    with pytest.raises(ValueError, match="0.25 is not for regression"):
        probed.check(Task("regression", (1,), 1))
    assert probed.before(None, None) == Up() and len(looks) == 1, (
        "slots that are not its own, and those without data, are not looked at"
    )
    watched = [
        slot
        for slot in vars(type(probed))
        if callable(vars(type(probed))[slot]) and not slot.startswith("_")
    ]
    assert set(watched) == {"start", "client", "update", "round", "observe"}
