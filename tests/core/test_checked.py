"""What is checked before it is used: arrays, names in sentences, names of code, and YAML of
strangers, each at its bounds.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from equipoise.experiment import experiment
from equipoise.validation import arrays, safe_yaml
from equipoise.validation.imports import (
    OWN,
    FromFile,
    Imports,
    NotAllowed,
    named,
    permitted,
    provided,
)
from equipoise.validation.names import (
    UnknownName,
    checked_name,
    closest,
    did_you_mean,
    nearest,
    quoted,
)
from equipoise.validation.safe_yaml import Unreadable, parsed, read
from equipoise.validation.settings import check_numbers
from tests.helpers.packages import write_package

# Arrays.


def test_numbers_of_any_kind_become_float64_and_results_the_kind_of_what_was_given() -> None:
    learnt = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    for given in (learnt, [1, 2], (1.0, 2.0), np.array([1, 2], np.int8)):
        assert arrays.float64(given).dtype == np.float64 and arrays.float64(given).tolist() == [
            1,
            2,
        ]
    assert arrays.tensor(learnt) is learnt and torch.equal(
        arrays.tensor([1.5]), torch.tensor([1.5], dtype=torch.float64)
    )
    array, tensor = np.ones(2), torch.ones(2, requires_grad=True)
    assert arrays.like(tensor, learnt) is tensor and arrays.like(array, array) is array
    assert isinstance(arrays.like(array, learnt), torch.Tensor) and arrays.like(
        array, learnt
    ).tolist() == [1, 1]
    assert isinstance(arrays.like(tensor, array), np.ndarray)


@pytest.mark.parametrize(
    ("given", "expected"), [([1, 2], [1, 2]), ([[1], [2]], [1, 2]), ([[3]], [3]), ([], [])]
)
def test_a_column_is_a_vector(given: Any, expected: list[float]) -> None:
    assert arrays.vector(given).tolist() == expected


@pytest.mark.parametrize("given", [3.0, [[1, 2]], [[1, 2], [3, 4]], [[[1]], [[2]]]])
def test_other_shapes_are_no_vector(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^values: .* got shape \("):
        arrays.vector(given)
    with pytest.raises(ValueError, match=r"^first: "):
        arrays.vectors(given, [1], ("first", "second"))
    with pytest.raises(ValueError, match=r"^second: "):
        arrays.vectors([1], given, ("first", "second"))


def test_pairs_of_unequal_length_are_named_in_their_order() -> None:
    with pytest.raises(
        ValueError, match="expected alone and together of equal length, got 1 and 2"
    ):
        arrays.vectors([1], [1, 2])
    a, b = arrays.vectors([1, 2], [3, 4])
    assert (a.tolist(), b.tolist()) == ([1, 2], [3, 4])


@pytest.mark.parametrize(
    ("values", "constant"),
    [
        ([0.0, 0.0], True),
        ([7.0], True),
        ([1, 1 + 5e-13], True),
        ([1, 1 + 1.5e-12], False),
        ([-1e6, -1e6 - 5e-7], True),
        ([0, 1e-20], False),
    ],
)
def test_equal_up_to_rounding_is_relative_to_the_size(values: list[float], constant: bool) -> None:
    assert arrays.is_constant(np.array(values)) is constant


def test_ranks_are_shared_by_equals() -> None:
    assert arrays.ranks([5, 5, 5]).tolist() == [2, 2, 2] and arrays.ranks(
        [2, 1, 2, 0]
    ).tolist() == [3.5, 2, 3.5, 1]


# Names in sentences.


def test_a_name_that_is_not_unicode_is_told_apart() -> None:
    for name, words in (("\udcff", "(it is not UTF-8); rename"), ("a/b", "outer spaces; rename")):
        with pytest.raises(ValueError) as caught:
            checked_name(name, "label")
        assert words in str(caught.value) and str(caught.value).startswith("label '")


class Shaped:
    def __init__(self, shape: Any) -> None:
        self.shape = shape

    def __repr__(self) -> str:
        return "shaped"


class Secret(Shaped):
    def __array__(self) -> Any:
        return np.zeros(1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x" * 118, "'" + "x" * 118 + "'"),
        ("x" * 119, "'" + "x" * 119 + "..."),
        ("a\x1b", r"'a\x1b'"),
        ([10**5000], "<list>"),
        (np.zeros((2, 3)), "<ndarray of shape (2, 3)>"),
        (torch.zeros(4), "<Tensor of shape (4,)>"),
        (Secret("many"), "<Secret of shape many>"),
        (Shaped((2,)), "shaped"),
        (np.float64(2), repr(np.float64(2))),
        (
            [1, (np.zeros(2), {"a": [np.ones(3)]})],
            "[1, (<ndarray of shape (2,)>, {'a': [<ndarray of shape (3,)>]})]",
        ),
        (Shaped, repr(Shaped)),
    ],
)
def test_a_quotation_shows_shapes_and_no_contents(value: Any, expected: str) -> None:
    assert quoted(value) == expected


def test_a_quotation_of_many_values_is_of_the_first_sixty() -> None:
    assert quoted(list(range(99)), 10**4) == repr(list(range(60)))
    assert quoted(dict.fromkeys(range(99)), 10**4) == repr(dict.fromkeys(range(60)))
    assert quoted("abcdef", 3) == "'ab..."


def test_unknown_names_are_told_with_the_nearest_and_at_most_sixty_others() -> None:
    assert (
        closest("fedavgg", ["fedprox", "fedavg"]) == "fedavg"
        and closest("fedavgg", ["fedavg"], 0.99) is None
    )
    assert closest("ab", ["cd"]) is None and did_you_mean("ab", ["cd"]) == ""
    known = [f"n{number:02}x" for number in range(61)]
    assert str(nearest("client", "qqqqqq", known[:60])).endswith(
        f"unknown client 'qqqqqq'. Known: {', '.join(known[:60])}"
    )
    assert str(nearest("client", "qqqqqq", known)).endswith(", n59x and 1 more")
    assert (
        str(nearest("option", "widht", ["width"]))
        == "unknown option 'widht'; did you mean 'width'? Known: width"
    )
    assert str(nearest("option", "width", [])) == "unknown option 'width'. Known: none"


# Names of code.


def test_permissions_add_up_and_travel() -> None:
    a, b = (
        Imports(frozenset({"a"}), frozenset({"m:x"})),
        Imports(frozenset({"b"}), frozenset({"m:y"}), True),
    )
    assert (a | b) == Imports(frozenset({"a", "b"}), frozenset({"m:x", "m:y"}), True)
    assert (a | a).everything is False and (b | a).everything and (a | b).everything
    assert (
        a.plain() == {"packages": ["a"], "names": ["m:x"], "everything": False}
        and b.plain()["everything"] is True
    )
    assert Imports.of_job({}) == Imports() and Imports.of_job(b.plain()) == b
    assert Imports.of_job({"everything": "yes"}) == Imports(), "a permission is given by True alone"
    assert a.with_names({"model": "m:z"}, "plain").names == {"m:x", "m:z"} and a.with_names(
        "m:z"
    ).packages == {"a"}


def test_words_with_a_colon_are_found_in_plain_data() -> None:
    assert named(["a:b", ("c:d", {"e:f": "g:h"}), "i", b"j:k", 3, None, {"l": ["m:n"]}]) == {
        "a:b",
        "c:d",
        "g:h",
        "m:n",
    }
    assert named("a") == named(3) == named(b"a:b") == frozenset()


def test_a_file_keeps_the_names_that_were_typed() -> None:
    file = FromFile({"rounds": 1})
    assert file.typed == frozenset()
    first = file.changed({"rounds": 2}, ["a:b"])
    second = first.changed({"rounds": 3}, [{"name": "c:d"}])
    assert (
        second == {"rounds": 3}
        and second.typed == {"a:b", "c:d"}
        and first.typed == {"a:b"}
        and file.typed == frozenset()
    )
    assert first.changed({}).typed == {"a:b"}
    assert yaml.safe_dump(second) == "rounds: 3\n"
    assert permitted(second, ["pack"]) == Imports(frozenset({"pack"}), frozenset({"a:b", "c:d"}))
    assert (
        permitted(second, "pack").packages == {"pack"} and permitted({"rounds": 3}, ["pack"]) is OWN
    )
    for wrong in ("a.b", "", "a:b"):
        with pytest.raises(
            ValueError, match="allow_imports: expected the name of a package such as my_models, got"
        ):
            permitted(second, [wrong])


@pytest.mark.parametrize(
    "name", ["no colon at all", "a:", ":b", "a b:c", "a.:b", "a:b.", "a-b:c", "a:b c"]
)
def test_what_cannot_be_a_name_of_code_is_refused_even_where_all_is_allowed(name: str) -> None:
    with pytest.raises(
        UnknownName, match="unknown model .*expected a name of ours, or package.module:name"
    ):
        OWN.check(name, "model")


def test_a_file_may_name_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "given", {}, {"equipoise.methods": {"net": "given.sub:Net"}})
    before = provided()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert provided() == {*before, "given"}
    some = Imports(frozenset({"mine"}), frozenset({"other.place:Net"}))
    for name in (
        "mine:Net",
        "mine.sub.deep:Net.inner",
        "other.place:Net",
        "given:Other",
        "given.sub:Net",
    ):
        some.check(name, "model")
    for name in ("mine2:Net", "other.place:Other", "other:Net", "sub.mine:Net"):
        with pytest.raises(
            NotAllowed,
            match=(
                rf"named by a file.* add --allow-import {name.partition(':')[0].partition('.')[0]} "
                r"\(in Python"
            ),
        ):
            some.check(name, "model")
    OWN.check("whatever.there.is:Net", "model")


@pytest.mark.parametrize(
    ("name", "makes", "sentence"),
    [
        ("torch.nn:Linear", "", None),
        ("torch.nn:Linear", "torch.nn.Module", None),
        ("math:sqrt", "torch.nn.Module", None),
        ("math:sqrt", "", r"is <built-in function sqrt>; expected a subclass of equipoise.Module"),
        (
            "math:pi",
            "torch.nn.Module",
            r"is 3.14.*; expected a class or a function that makes a torch.nn.Module",
        ),
        ("collections:OrderedDict", "", "expected a subclass of equipoise.Module"),
        (
            "no_such_module_here:Net",
            "",
            r"cannot import 'no_such_module_here' .*install its package",
        ),
        ("torch.nn:Liner", "", "unknown name in torch.nn 'Liner'; did you mean 'Linear'"),
        (
            "torch:nn.Linear",
            "",
            "leads through the module 'torch.nn'; name that module before the colon",
        ),
        ("torch.nn:Linear.forwards", "", "unknown name in torch.nn 'Linear.forwards'"),
    ],
)
def test_what_a_name_stands_for(name: str, makes: str, sentence: str | None) -> None:
    if sentence is None:
        assert callable(OWN.load(name, "model", nn.Module, makes))
        return
    with pytest.raises(UnknownName, match=sentence):
        OWN.load(name, "model", nn.Module, makes)


def test_a_module_in_the_current_folder_that_python_does_not_find_has_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_of_mine.py").write_text("")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match=r"is in this folder: set PYTHONPATH=\."):
        OWN.load("module_of_mine:Net", "model", nn.Module, "")


def test_functions_are_offered_only_where_a_function_will_do() -> None:
    with pytest.raises(UnknownName, match="did you mean 'get_close_matches'"):
        OWN.load("difflib:get_close_match", "model", nn.Module, "module")
    with pytest.raises(UnknownName, match="Known: none"):
        OWN.load("difflib:get_close_match", "model", nn.Module)


def test_names_that_a_module_imported_from_another_package_are_not_offered() -> None:
    """`difflib` imports `_namedtuple` from `collections`."""
    with pytest.raises(UnknownName) as error:
        OWN.load("difflib:_namedtupel", "model", nn.Module, "module")
    offered = str(error.value).partition("Known: ")[2].split(", ")
    assert "get_close_matches" in offered and "_namedtuple" not in offered


def test_a_function_that_an_allowed_package_only_imported_is_not_allowed() -> None:
    allowed = Imports(frozenset({"tests"}))
    here = f"{__name__}:"
    with pytest.raises(
        NotAllowed, match="is a function of 'equipoise.validation.names', which was not allowed"
    ):
        allowed.load(f"{here}nearest", "model", nn.Module, "module")
    assert allowed.load(f"{here}own_function", "model", nn.Module, "module") is own_function
    assert (
        allowed.with_names(f"{here}nearest").load(f"{here}nearest", "model", nn.Module, "module")
        is nearest
    )
    assert (allowed | OWN).load(f"{here}nearest", "model", nn.Module, "module") is nearest
    assert allowed.load(f"{here}Shaped", "thing", Shaped) is Shaped
    for name in (f"{here}Shaped", "no_such_module_here:Net"):  # not even looked for
        with pytest.raises(NotAllowed, match="is named by a file"):
            Imports(frozenset({"other"})).load(name, "thing", Shaped)


def own_function() -> None:
    """What a user's module would hold."""


# YAML.


def refused(text: str, *words: str) -> None:
    with pytest.raises(Unreadable) as caught:
        parsed(text, "file")
    assert str(caught.value).startswith("file") and all(
        word in str(caught.value) for word in words
    ), str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: [x, 2.5, null, true]", {"a": 1, "b": ["x", 2.5, None, True]}),
        ("1: a\n'2': b", {"1": "a", "2": "b"}),
        ("day: 2020-01-31", {"day": "2020-01-31"}),
        ("a: &x 1\nb: *x", {"a": 1, "b": 1}),
        ("base: &b {p: 1}\nother: {<<: *b, q: 2}", {"base": {"p": 1}, "other": {"p": 1, "q": 2}}),
        ("n: -9223372036854775807", {"n": -(2**63) + 1}),
        ("n: 9223372036854775807", {"n": 2**63 - 1}),
        ("x: [.inf, -.INF]", {"x": [math.inf, -math.inf]}),
        (f"x: 0.{'1' * 98}", {"x": pytest.approx(1 / 9)}),
        ("", None),
    ],
)
def test_plain_data_are_read(text: str, expected: Any) -> None:
    assert parsed(text, "file") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: [", (" is not YAML", "line 3")),
        ("a: 1\n  b: 2", ("is not YAML", "line 2")),
        ("a: \x00", ("is not YAML",)),
        ("a: *x", ("the alias *x stands for nothing",)),
        ("a: &x [*x]", ("the alias *x stands for nothing",)),
        ("a: !!bool nonsense", ("expected true or false, got 'nonsense'", "line 1")),
        ("a: !!python/name:os.system x", ("is not YAML", "line 1")),
        ("a: !!set {b}", ("is not YAML",)),
        ("a: !!binary aGk=", ("is not YAML",)),
        ("a: !!int abc", ("'abc' is not a number", "line 1")),
        ("true: 1", ("expected text as a key, got True; write it in quotes, line 1",)),
        ("a: 1\nb: {0.1: 2}", ("expected text as a key, got 0.1", "line 2")),
        ("null: 1", ("expected text as a key, got None",)),
        ("n: 9223372036854775808", ("the number 9223372036854775808 is too large",)),
        ("n: -9223372036854775808", ("the number -9223372036854775808 is too large",)),
        ("x: 1.0e+400", ("the number 1.0e+400 is too large",)),
        (f"x: 0.{'1' * 99}", (f"the number '0.{'1' * 37}... has more than 100 characters",)),
    ],
)
def test_everything_else_is_refused_with_a_reason(text: str, words: tuple[str, ...]) -> None:
    refused(text, *words)


def test_thirty_two_levels_are_the_most_also_through_aliases() -> None:
    assert parsed("[" * 32 + "]" * 32, "file")
    refused("[" * 33 + "]" * 33, "at most 32 levels")
    for most, fits in (
        (30, True),
        (31, False),
    ):  # x0 has one level, each further one more, and the mapping is one
        chain = "x0: &x0 [1]\n" + "".join(
            f"x{n}: &x{n} [*x{n - 1}, 1]\n" for n in range(1, most + 1)
        )
        if fits:
            assert len(parsed(chain, "file")) == most + 1
        else:
            refused(chain, "300,000 values and 32 levels")


def test_values_are_counted_with_their_lists_and_through_aliases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert safe_yaml.MOST_VALUES == 300_000 and safe_yaml.MOST_BYTES == 1_000_000
    monkeypatch.setattr(safe_yaml, "MOST_VALUES", 10)
    assert parsed("[1, 2, 3, 4, 5, 6, 7, 8, 9]", "file")
    refused("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", "at most 10 values")
    assert parsed("a: &x [1, 2]\nb: *x", "file")  # 1 for the mapping, 2 keys, twice 3
    refused("a: &x [1, 2]\nb: *x\nc", "is not YAML")
    refused("a: &x [1, 2, 3]\nb: *x", "at most 10 values")
    assert parsed("a: &x 1\nb: [*x, *x, *x, *x, *x]", "file")
    refused("a: &x 1\nb: [*x, *x, *x, *x, *x, *x]", "at most 10 values")


def test_a_file_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_yaml, "MOST_BYTES", 8)
    file = tmp_path / "a.yaml"
    for raw, expected in ((b"abc: 123", {"abc": 123}), (b"\xef\xbb\xbfa: 1", {"a": 1})):
        file.write_bytes(raw)
        assert read(file) == read(str(file)) == expected
    for raw, words in (
        (b"abc: 1234", "at most 1 MB; this one is larger"),
        (b"a: \xff", r"is not text in UTF-8 \(byte 3\)"),
        (b"[", "is not YAML"),
    ):
        file.write_bytes(raw)
        with pytest.raises(Unreadable, match=f"a.yaml.*{words}"):
            read(file)
    with pytest.raises(Unreadable, match="b.yaml cannot be read: No such file"):
        read(tmp_path / "b.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"), ("1:30.5", "1:30.5"), ("010", 10), ("0o10", 8), ("0x1F", 31), ("1_0", "1_0"), ("0b1", "0b1"),
        ("yes", "yes"), ("No", "No"), ("on", "on"), ("OFF", "OFF"), ("y", "y"), ("true", True), ("False", False), ("tRUE", "tRUE"),
        ("1e3", 1000.0), ("1E10", 1e10), ("E10", "E10"), ("-.5", -0.5), ("5.", 5.0), (".inf", float("inf")), ("2024-01-31", "2024-01-31"),
        ("~", None), ("", None), ("null", None), ("-", [None]), ("+7", 7), ("12:00:00", "12:00:00"),
    ],
)  # fmt: skip
def test_numbers_and_booleans_are_those_of_yaml_1_2(text: str, value: object) -> None:
    assert parsed(text, "file") == value
    assert parsed(safe_yaml.dumped({"a": text}), "file") == {"a": text}, "text stays text"
    assert parsed(safe_yaml.dumped({text: 1}), "file") == {text: 1}


def test_a_key_that_appears_twice_is_refused_with_its_line() -> None:
    refused("a: 1\nb: 2\na: 3", "'a' appears twice", "line 3")
    refused("x:\n- {b: 1, c: 2, b: 1}", "'b' appears twice", "line 2")
    refused("1: a\n'1': b", "'1' appears twice", "line 2")
    merged = "one: {two: &base {p: 1, q: 2}}\nlast: {<<: *base, p: 3}"
    assert parsed(merged, "file")["last"] == {"p": 3, "q": 2}


@pytest.mark.parametrize(
    ("value", "hint", "fits"),
    [
        (True, int, False), (False, float | None, False), ([True, 1], tuple[int, ...], False), (True, bool, True), (True, bool | int, True),
        (1, int, True), (True, str, True),
    ],
)  # fmt: skip
def test_true_is_no_number(value: object, hint: object, fits: bool) -> None:
    if fits:
        check_numbers(value, hint)
        return
    with pytest.raises(ValueError, match="expected a number, got (true|false)"):
        check_numbers(value, hint)


def test_settings_that_are_numbers_refuse_underscores() -> None:
    for values in (
        {"rounds": "1_0"},
        {"training": {"lr": "1_0.5"}},
        {"method": {"name": "fedprox", "mu": "1_0"}},
    ):
        with pytest.raises(ValueError, match="expected a number, got '1_0"):
            experiment(values)
    assert experiment({"rounds": "10"}).rounds == 10


def test_settings_that_are_numbers_refuse_true() -> None:
    for values in (
        {"rounds": True},
        {"training": {"lr": True}},
        {"method": {"name": "fedprox", "mu": True}},
    ):
        with pytest.raises(ValueError, match="expected a number, got true"):
            experiment(values)
