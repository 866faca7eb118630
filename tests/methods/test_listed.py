"""What the list of methods says of each is filled in, and true: needs, exchanges and passes are
held to runs.
"""

from __future__ import annotations

import re
import runpy
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import equipoise as eq
from equipoise import methods
from equipoise.engine.cohort import RoundCohort
from equipoise.experiment import ConfigurationError
from equipoise.experiment.build import prepare
from equipoise.method import FAMILIES, NEEDS, NOTIONS, Method
from equipoise.methods.fedekd import FedeKD
from equipoise.task import Task
from tests.helpers.callbacks import Calling
from tests.helpers.counting import counted
from tests.helpers.runs import OF_EACH_KIND, settings, sites

EPOCHS, CLIENTS = 3, 4
# Whose passes are no plain sum: made samples, calibration sets, hidden units, trials of a line
# search. Their own tests count them.
IN_WORDS = {"fedcog", "fedmdfg", "fedsac", "fedtype", "finetune", "groupthresholds", "poise"}

# The models that clients end with: "all" where it is the same for all, "main" where it is what the
# method is for. Else the global model alone.
SERVED: dict[str, dict[str, str]] = {
    **{name: {"personal": "main"} for name in ("cffl", "cgsv", "fedave")},
    **{
        name: {"personal": "main", "global": "all"}
        for name in ("ditto", "fedakd", "fedas", "finetune", "groupthresholds")
    },
    **{name: {"proxy": "all", "personal": "main"} for name in ("fedekd", "fedtype")},
    "fedsac": {"submodel": "main"},
    "kdia": {"global": "all main", "teacher": "all"},
    "pfedck": {"personal": "main", "interactive": "all"},
    "poise": {"personal": "main", "global": "all", "alone": ""},
    "standalone": {"personal": ""},
}
# samples of each client on which two ways to its Fisher diagonal are first compared
TRIED = {"fedequilibria": 4}


def of_round(text: str) -> str:
    return text.split("; once ")[0]


def bounds(passes: str) -> dict[str, tuple[int, int]]:
    """T, F and V -> the least and the most times.

    A term behind "up to" may be anything from nothing.
    """
    low, high = Counter[str](), Counter[str]()
    for term in of_round(passes).split(" + "):
        found = re.fullmatch(r"(up to )?(\d*)((?:[EK]·?)*)([TFV])", term)
        assert found, f"{term!r} is no product of a number, E, K and one of T, F, V"
        times = prod(
            ({"E": EPOCHS, "K": CLIENTS}[sign] for sign in re.findall("[EK]", found[3])),
            start=int(found[2] or 1),
        )
        high[found[4]] += times
        low[found[4]] += 0 if found[1] else times
    return {sign: (low[sign], high[sign]) for sign in "TFV"}


def test_bounds_read_what_the_methods_say() -> None:
    assert bounds("E·T + up to 2E·T + 2F + 2K·V; once rounds·E·T") == {
        "T": (3, 9),
        "F": (2, 2),
        "V": (8, 8),
    }
    with pytest.raises(AssertionError, match="is no product"):
        bounds("E·T + some F")


@pytest.mark.parametrize("name", methods.names())
def test_every_method_says_what_it_is(name: str) -> None:
    kind = methods.find(name)
    entry = methods.describe(name)
    assert entry["family"] in FAMILIES.keys() - {"own"}
    assert set(entry["fairness"].split(", ")) <= set(NOTIONS)
    assert set(entry["needs"]) <= NEEDS.keys()
    assert "not stated" not in (entry["exchanges"], entry["passes"])
    if name == "standalone":
        assert (entry["year"], entry["paper"]) == (None, "")
        return
    assert 2016 <= entry["year"] <= 2026
    cited = methods.importlib.import_module(kind.__module__).__doc__
    assert str(entry["year"]) in cited, "the citation is of another year"
    assert len(cited.split()) > 15 and (
        "https://" in cited or "github.com" in cited or "arXiv" in cited or "No address" in cited
    ), cited


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.quick_cases(*OF_EACH_KIND)
def test_exchanges_and_passes_are_those_of_a_second_round(name: str, tmp_path: Path) -> None:
    """Of the second, since in the first some teachers are missing: per training sample, and per
    sample of the server's. And what is served.
    """
    entry, at_the_end, exchanges, original = (
        methods.describe(name),
        [],
        Counter[int](),
        RoundCohort.run,
    )
    kind, served = methods.find(name), {}
    serves = kind.serves

    def served_and_noted(*arguments: Any) -> Any:
        for key, one in (found := serves(*arguments)).items():
            served[key] = " ".join(
                ["all"] * getattr(one, "same_for_all", False)
                + ["main"] * getattr(one, "main", False)
            )
        return found

    def run_and_count(self: RoundCohort, *arguments: Any, **more: Any) -> Any:
        exchanges[self.server.round] += 1
        return original(self, *arguments, **more)

    training = {"lr": 0.05, "batch": 5, "epochs": EPOCHS}
    wanted = eq.Experiment(
        **settings(name, rounds=2, training=training), dataset=eq.from_sites(sites())
    )
    with (
        counted() as passes,
        patch.object(RoundCohort, "run", run_and_count),
        patch.object(kind, "serves", served_and_noted),
    ):
        run = eq.run(
            wanted,
            tmp_path / "run",
            callbacks=Calling(on_round=lambda record: at_the_end.append(Counter(passes))),
        )
    assert not run.rejected()
    assert served == SERVED.get(name, {"global": "all"})
    assert served.keys() <= set(kind.served_models)
    if entry["exchanges"].replace("; once ", "").isdigit():
        assert exchanges[2] == int(of_round(entry["exchanges"]))
        assert exchanges[0] == int(entry["exchanges"].partition("; once ")[2] or 0)
    if name in IN_WORDS:
        return
    second = at_the_end[1] - at_the_end[0]
    second["client", "gradient"] -= CLIENTS * TRIED.get(name, 0)
    sizes = {part: sum(counts) for part, counts in run.store.meta("sizes").items()}
    assert not second["server", "gradient"]
    for sign, who, samples in (
        ("T", ("client", "gradient"), sizes["train"]),
        ("F", ("client", "forward"), sizes["train"]),
        ("V", ("server", "forward"), sizes["validation"]),
    ):
        low, high = bounds(entry["passes"])[sign]
        assert low * samples <= second[who] <= high * samples, (sign, second[who] / samples)


@pytest.mark.parametrize("name", methods.names())
def test_needs_are_what_is_refused(name: str) -> None:
    needs = methods.describe(name)["needs"]
    for need, task, changes in (
        ("classes", Task("regression", (1, 8, 8), 1), {}),
        ("images", Task("classification", (7,), 3), {}),
        ("sgd", Task("classification", (1, 8, 8), 3), {"training": {"momentum": 0.9}}),
    ):
        try:
            prepare(eq.Experiment(**settings(name, **changes)), task, ["a"])
        except (ConfigurationError, ValueError):
            assert need in needs, f"{name} refuses a task without {need!r}, but does not list it"
        else:
            assert need not in needs, f"{name} lists {need!r}, but takes a task without it"


@pytest.mark.thorough
def test_a_users_method_lists_with_what_is_known_of_it() -> None:
    @dataclass(frozen=True)
    class Plain(Method):
        """Mine."""

    @dataclass(frozen=True)
    class Changed(FedeKD):
        """FedeKD, changed: what FedeKD costs need not be what this costs."""

        family = "house"

    methods.register(Plain)
    methods.register(Changed)
    try:
        plain, changed = methods.describe("plain"), methods.describe("changed")
        ends = [entry["name"] for entry in methods.listed()][-2:]
        house = methods.listed(family="house")
    finally:
        for name in ("plain", "changed"):
            del methods.REGISTRY.registered[name]
    assert (plain["family"], plain["year"], plain["exchanges"], plain["passes"]) == (
        "own",
        None,
        "1",
        "not stated",
    )
    assert (changed["exchanges"], changed["passes"], changed["fairness"]) == (
        "not stated",
        "not stated",
        "not stated",
    )
    assert ends == ["plain", "changed"] and [entry["name"] for entry in house] == ["changed"]


@pytest.mark.thorough
def test_lists_can_be_narrowed() -> None:
    assert {entry["family"] for entry in methods.listed("drift")} == {"drift"}
    assert {"scaffold", "feddc", "qfedavg"} <= {
        entry["name"] for entry in methods.listed(needs="sgd")
    }
    free = {entry["name"] for entry in methods.listed(needs="none")}
    assert "fedavg" in free and "scaffold" not in free
    assert {entry["name"] for entry in methods.listed()} == set(methods.names())
    for wrong, sentence in (
        ({"family": "drft"}, "unknown family 'drft'; did you mean 'drift'?"),
        ({"needs": "clases"}, "'classes'"),
    ):
        with pytest.raises(methods.UnknownName, match=re.escape(sentence)):
            methods.listed(**wrong)


def test_the_pages_list_what_there_is() -> None:
    root = Path(__file__).parents[2]
    made = runpy.run_path(str(root / "docs" / "methods" / "index.py"))
    pages = {
        root / "README.md": made["front"]((root / "README.md").read_text()),
        root / "docs" / "methods" / "README.md": made["index"](),
    }
    for page, text in pages.items():
        assert page.read_text() == text, "out of date; run: python docs/methods/index.py"
        assert all(f"[`{name}`](" in text for name in methods.names())
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / target).exists(), target


def test_lists_go_by_family_then_year_then_name() -> None:
    entries, order = methods.listed(), list(FAMILIES)
    keys = [(order.index(entry["family"]), entry["year"] or 0, entry["name"]) for entry in entries]
    assert (
        keys == sorted(keys)
        and entries[0]["name"] == "standalone"
        and len({key[:2] for key in keys}) < len(keys)
    )


@pytest.mark.parametrize(
    ("method", "parameter", "words"),
    [
        ("cffl", "alpha", "float > 0 and <= 100"),
        ("cffl", "memory", "float >= 0 and < 1"),
        ("fedheal", "tau", "float"),
        ("feddc", "grad_correction", "bool"),
        ("fedsac", "alone", "int >= 1 or none"),
        ("ditto", "average", "one of 'uniform', 'size'"),
        ("standalone", "model", "str"),
    ],
)
def test_ranges_in_words(method: str, parameter: str, words: str) -> None:
    assert {entry["name"]: entry["range"] for entry in methods.describe(method)["parameters"]}[
        parameter
    ] == words


def test_a_reconstruction_is_shown_as_one_and_other_names_as_they_are() -> None:
    listed = ("pa3fed", "fedsac", "pfedck", "fedmpr", "fedavg", "my.module:Thing")
    shown = {name: methods.shown(name) for name in listed}
    assert shown == {
        "pa3fed": "pa3fed (reconstruction)",
        "fedsac": "fedsac (reconstruction)",
        "pfedck": "pfedck (reconstruction)",
        "fedmpr": "fedmpr (reconstruction)",
        "fedavg": "fedavg",
        "my.module:Thing": "my.module:Thing",
    }


def test_what_is_no_name_and_no_finite_number_is_refused() -> None:
    with pytest.raises(methods.UnknownName, match="unknown method 3: expected a name"):
        methods.find(3)  # type: ignore[arg-type]
    for value in (float("inf"), float("nan")):
        with pytest.raises(
            ValueError, match=r"method.mu: .*finite number, got (inf|nan); fedprox.mu is float >= 0"
        ):
            methods.make("fedprox", {"mu": value})
    assert (
        methods.make("fedprox", {"mu": 0})
        == methods.make("fedprox", {"mu": 0.0})
        != methods.make("fedprox")
    )


@dataclass(frozen=True)
class Sharper(FedeKD):
    """Trusts
    less.

    And says so.
    """

    beta: float = 3.0  # mine

    def setup(self, server: Any, state: Any, everyone: Any) -> Any:
        return state


def test_a_class_that_changes_a_default_explains_it_itself() -> None:
    methods.register(Sharper)
    try:
        found = methods.describe("sharper")
    finally:
        del methods.REGISTRY.registered["sharper"]
    told = {
        entry["name"]: (entry["default"], entry["range"], entry["help"])
        for entry in found["parameters"]
    }
    assert told["beta"] == (3.0, "float", "mine") and "0 is local training" in told["lambda_kd"][2]
    assert (found["summary"], found["needs"], found["exchanges"]) == (
        "Trusts less.",
        ["labels"],
        "not stated",
    )
