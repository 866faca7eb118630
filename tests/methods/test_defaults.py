"""Defaults are what the methods' pages say, and what a method is for the rest of the library is
what its paper makes of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise import methods

PAGES = Path(__file__).parents[2] / "docs" / "methods"
WITHOUT_A_PAGE: dict[str, dict[str, Any]] = {
    "fedavg": {"average": "size"},
    "fedavgm": {"average": "size", "beta": 0.9, "dampening": 0.0, "server_rate": 1.0},
    "fedprox": {"average": "size", "mu": 0.01},
    "finetune": {
        "average": "size",
        "tune_average": "none",
        "tune_epochs": 5,
        "validation": False,
    },
    "scaffold": {"server_rate": 1.0},
    "standalone": {"model": "model"},
}
# of FedAvg: the pages of the methods that train as it does say nothing of it
INHERITED = {"average": "size"}
FLAGS = {
    "weighs": {"fedmdfg", "standalone"},  # whose rounds weigh no replies
    "uploads_model": {
        "cffl",
        "cgsv",
        "fedave",
        "fedmdfg",
        "standalone",
    },  # whose replies hold no model
    "shares_model": {"standalone"},
    "trains": {"fedmdfg"},
}
ABILITIES = {
    "composable_weights": {
        "corefed",
        "fairfed",
        "fedas",
        "fedavg",
        "feddisco",
        "fedequilibria",
        "pa3fed",
        "qfedavg",
    },
    "composable_update": {
        "corefed",
        "fedavg",
        "fedequilibria",
        "fedgkd",
        "fedlsa",
        "kdia",
        "poise",
    },
    "composable_finish": {"finetune", "groupthresholds", "poise"},
    "reconstruction": {"fedmpr", "fedsac", "pa3fed", "pfedck"},
}


def on_the_page(name: str) -> dict[str, Any]:
    """The table of parameters: names and defaults, several of either in a row where they belong
    together.
    """
    lines = (
        (PAGES / f"{name}.md")
        .read_text()
        .partition("## Parameters")[2]
        .partition("\n## ")[0]
        .splitlines()
    )
    found: dict[str, Any] = {}
    for row in [line.split("|")[1:3] for line in lines if line.startswith("| `")]:
        names, values = ([one.strip(" `") for one in cell.split(",")] for cell in row)
        found |= dict(zip(names, values * len(names) if len(values) == 1 else values, strict=False))
    return {
        key: None if value == "none" and key == "alone" else yaml.safe_load(value)
        for key, value in found.items()
    }


@pytest.mark.parametrize("name", methods.names())
def test_defaults_are_those_on_the_page(name: str) -> None:
    expected = WITHOUT_A_PAGE[name] if name in WITHOUT_A_PAGE else INHERITED | on_the_page(name)
    given = methods.parameters_of(methods.make(name))
    assert (
        given
        and given.keys() <= expected.keys()
        and expected.keys() - given.keys() <= INHERITED.keys()
    )
    assert given == {key: expected[key] for key in given}


@pytest.mark.parametrize("flag", [*FLAGS, *ABILITIES])
def test_what_a_method_is_by_default(flag: str) -> None:
    told = {
        name
        for name in methods.names()
        if bool(getattr(methods.make(name), flag)) == (flag in ABILITIES)
    }
    if flag in (
        "composable_weights",
        "composable_update",
    ):  # what is inherited from FedAvg says nothing of the class itself
        told = {name for name in told if flag in vars(methods.find(name))}
    assert told == (FLAGS | ABILITIES)[flag]


NEEDS = {
    "labels": {"fedekd", "fedequilibria", "fedgkd", "pfedck"},
    "sgd": {"feddc", "qfedavg", "scaffold"},
    "validation": {"cffl", "fedave", "fedsac"},
    "classes": {
        "cffl",
        "fairfed",
        "fedakd",
        "fedas",
        "fedave",
        "fedcog",
        "feddisco",
        "fedlsa",
        "fedminmax",
        "fedproto",
        "fedsac",
        "fedtype",
        "groupthresholds",
        "kdia",
    },
}


@pytest.mark.parametrize("need", NEEDS)
def test_what_a_method_requires_by_default(need: str) -> None:
    assert {name for name in methods.names() if need in methods.make(name).needs} == NEEDS[need]


@pytest.mark.parametrize(
    ("name", "parameters", "needs"),
    [
        ("feddc", {"grad_correction": False}, ()),
        ("ditto", {"preset": "gfedplat"}, ("sgd",)),
        ("fedakd", {"teach_on": "all", "average": "size"}, ("labels",)),
        ("kdia", {"lambda_kd": 0.0, "lambda_gen": 0.0}, ("head",)),
    ],
)
def test_what_a_method_requires_may_depend_on_its_parameters(
    name: str, parameters: dict[str, Any], needs: tuple[str, ...]
) -> None:
    assert methods.make(name, parameters).needs == needs
