"""Methods by name: found, made with checked parameters, described."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from equipoise import methods
from equipoise.method import Count, Fraction, Method
from equipoise.methods.fedprox import FedProx


@dataclass(frozen=True)
class Mine(Method):
    """A method of the tests.

    More about it.
    """

    paper = "Nobody, Nowhere"
    share: Fraction = 0.5  # how much
    times: Count = 3  # how often


@pytest.fixture
def registered() -> Iterator[None]:
    methods.register(Mine)
    yield
    del methods.REGISTRY.registered["mine"]


def test_methods_are_files_and_what_users_register(registered: None) -> None:
    assert {"standalone", "fedavg", "fedprox", "fedavgm", "scaffold", "mine"} <= set(
        methods.names()
    )
    assert methods.make("mine", {"times": 4}) == Mine(times=4)
    assert methods.names() == sorted(methods.names())


def test_a_method_of_a_users_module_is_found_by_its_path() -> None:
    assert methods.find("equipoise.methods.fedprox:FedProx") is FedProx
    assert methods.name_of(FedProx()) == "fedprox"
    assert methods.name_of(Mine()) == f"{__name__}:Mine"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fedproxx", "unknown method 'fedproxx'; did you mean 'fedprox'?"),
        ("zzz", "unknown method 'zzz'. Known: "),
        (
            "no_such_package:Thing",
            "unknown method 'no_such_package:Thing': cannot import 'no_such_package'",
        ),
        (
            "equipoise.methods.fedprox:FedPro",
            "unknown name in equipoise.methods.fedprox 'FedPro'; did you mean 'FedProx'?",
        ),
        ("equipoise.records:Up", "expected a subclass of equipoise.Method"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name: str, sentence: str) -> None:
    with pytest.raises(methods.UnknownName) as caught:
        methods.find(name)
    assert sentence in str(caught.value)


def test_parameters_are_checked_by_name_type_and_range() -> None:
    assert methods.make("fedprox", {"mu": "1e-3"}) == FedProx(mu=0.001), "YAML reads 1e-3 as text"
    with pytest.raises(
        methods.UnknownName,
        match=r"unknown parameter of fedprox 'nu'; did you mean 'mu'. Known: average, mu",
    ):
        methods.make("fedprox", {"nu": 1})
    with pytest.raises(
        ValueError,
        match=r"method.mu: .*greater than or equal to 0, got -1; fedprox.mu is float >= 0",
    ):
        methods.make("fedprox", {"mu": -1})
    with pytest.raises(ValueError, match=r"fedavg.average is one of 'size', 'uniform'"):
        methods.make("fedavg", {"average": "siz"})


def test_a_description_has_paper_ranges_and_the_comments_of_the_fields(registered: None) -> None:
    found = methods.describe("mine")
    assert (found["summary"], found["paper"]) == ("A method of the tests.", "Nobody, Nowhere")
    assert found["doc"].endswith("More about it.")
    assert found["parameters"] == [
        {"name": "share", "default": 0.5, "range": "float >= 0 and <= 1", "help": "how much"},
        {"name": "times", "default": 3, "range": "int >= 1", "help": "how often"},
    ]
    inherited = {
        entry["name"]: entry["help"] for entry in methods.describe("fedprox")["parameters"]
    }
    assert inherited["average"] and inherited["mu"]


@pytest.mark.parametrize("name", methods.names())
def test_every_method_says_what_it_is_and_explains_its_parameters(name: str) -> None:
    found = methods.describe(name)
    assert found["summary"].endswith(".") and (found["paper"] or name in ("standalone", "poise"))
    assert all(entry["help"] and entry["range"] for entry in found["parameters"])
