"""The replies of an exchange, weights, and the slots of a method by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from equipoise.method import (
    SLOTS,
    Cohort,
    Method,
    Served,
    Ups,
    Weights,
    mistake,
    model_of,
    overridden,
    shared_of,
)
from equipoise.records import Down, State, Up
from equipoise.tree import Tree


def up(number: float) -> Up:
    model = Tree(
        {
            "w": torch.full((2,), float(number)),
            "mean": torch.tensor(10.0 * number),
            "n": torch.tensor(int(number)),
        },
        "net",
        ["mean", "n"],
    )
    return Up(
        x=number,
        count=int(number),
        pair=torch.tensor([1.0, 2.0]) * number,
        counts=torch.tensor([int(number), 1]),
        model=model,
        parts=[number, 1.0],
    )


REPLIES = Ups([("ada", up(1)), ("bo", None), ("cy", up(4)), ("di", up(2))])


def test_missing_replies_are_left_out() -> None:
    assert REPLIES.ids == ["ada", "cy", "di"]
    assert len(REPLIES) == 3 and [reply.x for reply in REPLIES] == [1, 4, 2]
    assert REPLIES[1].x == 4 and REPLIES[-1].x == 2 and [reply.x for reply in REPLIES[:2]] == [1, 4]
    assert REPLIES.values("count") == [1, 4, 2]
    assert REPLIES.table("x") == {"ada": 1, "cy": 4, "di": 2}


def test_numbers_and_rows() -> None:
    assert REPLIES.numbers("x").dtype == np.float64 and REPLIES.numbers("x").tolist() == [1, 4, 2]
    assert REPLIES.stack("pair").tolist() == [[1, 2], [4, 8], [2, 4]]
    assert REPLIES.stack("model").tolist() == [[1, 1], [4, 4], [2, 2]], "trained entries only"
    assert REPLIES.stack("parts").tolist() == [[1, 1], [4, 1], [2, 1]]
    assert REPLIES.stack("x").shape == (3, 1) and REPLIES.stack("x").dtype == torch.float64


def test_means_of_numbers_tensors_and_trees() -> None:
    shares = [1.0, 2.0, 1.0]
    assert REPLIES.mean("x", shares) == REPLIES.mean("count", np.array(shares)) == 11 / 4
    pair = REPLIES.mean("pair", shares)
    assert pair.tolist() == [2.75, 5.5] and pair.dtype == torch.float32
    mean = REPLIES.mean("model", shares)
    assert (
        mean["w"].tolist() == [2.75] * 2 and mean["mean"].item() == 27.5 and mean["n"].item() == 4
    )
    assert mean.untrained == {"mean", "n"}


def test_shares_may_sum_to_less_than_one() -> None:
    assert REPLIES.mean("x", [0.125, 0.25, 0.125]) == REPLIES.mean("x", [1, 2, 1])


def test_a_mean_of_counts_is_not_cut_to_whole_numbers() -> None:
    assert REPLIES.mean("counts", [1, 1, 0]).tolist() == [2.5, 1]


def test_sums_are_not_divided() -> None:
    assert REPLIES.sum("x", [1, 1, -1]) == 3
    assert REPLIES.sum("model", [1, 0.5, 0])["w"].tolist() == [3] * 2


def test_some_of_the_replies() -> None:
    some = REPLIES.of(["di", "bo", "ada"])
    assert some.ids == ["ada", "di"], "the order of the cohort"
    assert some.mean("x", [1, 3]) == 7 / 4
    assert [client for client, _ in some.positions] == ["ada", "bo", "cy", "di"]


def test_a_missing_reply_does_not_shift_the_blocks_of_a_sum() -> None:
    """A sum over the same replies has the same bits, whether the others left or were set aside."""
    draw = np.random.Generator(np.random.PCG64(0))
    all_of_them = Ups(
        [
            (str(k), Up(v=torch.from_numpy(draw.standard_normal(20) * 10.0 ** (k % 4))))
            for k in range(40)
        ]
    )
    left = Ups(
        [
            (client, None if client in ("2", "17") else reply)
            for client, reply in all_of_them.positions
        ]
    )
    kept = all_of_them.of([client for client in all_of_them.ids if client not in ("2", "17")])
    weights = draw.random(38)
    assert torch.equal(left.mean("v", weights), kept.mean("v", weights))


def test_gram_of_replies_and_more() -> None:
    more = Tree({"w": torch.tensor([1.0, -1.0])})
    np.testing.assert_array_equal(REPLIES.gram("model", [more])[:, 3], [0, 0, 0, 2])
    np.testing.assert_array_equal(REPLIES.gram("model")[0], [2, 8, 4])


@pytest.mark.parametrize("count", [2, 4])
def test_one_coefficient_per_reply(count: int) -> None:
    with pytest.raises(ValueError, match=f"x: expected 3 coefficients, one per reply, got {count}"):
        REPLIES.mean("x", [1.0] * count)


@pytest.mark.parametrize("shares", [[0, 0, 0], [1, -1, 0], [1, 1, -3], [float("nan"), 1, 1]])
def test_shares_without_a_positive_sum_have_no_mean(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="expected shares with a positive sum"):
        REPLIES.mean("x", shares)


def test_weights_scale_their_step_only() -> None:
    weights = Weights(np.array([1.0, 2.0]), step=0.5).times(4)
    assert weights.step == 2 and weights.shares.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("shares", "absent"),
    [
        ([-1.0, 2.0], {}),
        ([np.nan], {}),
        ([np.inf], {}),
        ([1.0], {"bo": -0.5}),
        ([1.0], {"bo": np.nan}),
        ([[1.0, 2.0]], {}),
    ],
)
def test_shares_are_finite_and_at_least_zero_also_of_those_who_are_absent(
    shares: Any, absent: dict[str, float]
) -> None:
    with pytest.raises(
        ValueError, match="Weights: expected one finite share of at least 0 per reply"
    ):
        Weights(np.array(shares), absent=absent)


def test_a_share_of_zero_is_one_and_the_step_is_whole() -> None:
    weights = Weights(np.array([0.0, 1.0]), absent={"bo": 0.0})
    assert (
        weights.step == 1.0
        and weights.times(0.5).absent == {"bo": 0.0}
        and Weights(np.array([1.0])).absent == {}
    )


def test_the_model_that_all_have_is_the_marked_one_or_else_the_first() -> None:
    a, b, c = (SimpleNamespace(name=name) for name in "abc")
    served: Any = {"mine": a, "main": Served(b, main=True), "global": Served(c, same_for_all=True)}  # type: ignore[arg-type]
    assert shared_of(served) == ("global", c) and model_of(served["main"]) is b and model_of(a) is a  # type: ignore[arg-type]
    del served["global"]
    assert shared_of(served) == ("mine", a)
    plain = Served(a)  # type: ignore[arg-type]
    assert (plain.same_for_all, plain.main) == (False, False)


def test_a_method_that_says_nothing_needs_nothing_and_lends_nothing() -> None:
    flags = ("weighs", "uploads_model", "shares_model", "trains")
    assert all(getattr(Method, flag) is True for flag in flags)
    others = ("composable_weights", "composable_update", "composable_finish", "reconstruction")
    assert all(getattr(Method, flag) is False for flag in others) and Method.needs == ()
    method, state, server = (
        Method(),
        State(x=1),
        SimpleNamespace(sizes={"ada": 3, "di": 5, "bo": 9}),
    )
    assert (
        method.models(None, {}) == {}
        and method.inputs(None, Down()) is None
        and method.check(None) is None
    )  # type: ignore[arg-type, func-returns-value]
    for slot in (method.setup, method.finish, method.after_round_guest, method.observe):
        assert slot(None, state, None) is state  # type: ignore[arg-type]
    assert method.before(None, None) == method.after(None, None, None) == Up()  # type: ignore[arg-type]
    assert method.weights(server, state, REPLIES.of(["ada", "di"])).shares.tolist() == [3, 5]  # type: ignore[arg-type]
    assert method.title == "Method"


@pytest.mark.parametrize(("step", "w"), [(1.0, 2.5), (0.5, 6.25), (2.0, -5.0)])
def test_the_model_moves_by_its_step_towards_the_mean_and_buffers_take_the_mean(
    step: float, w: float
) -> None:
    state = State(model=up(10).model, kept=3)
    new = Method().update(
        None, state, REPLIES.of(["ada", "cy"]), Weights(np.array([1.0, 1.0]), step=step)
    )  # type: ignore[arg-type]
    assert new.model["w"].tolist() == [w] * 2 and new.kept == 3
    assert (
        new.model["mean"].item() == 25
        and new.model["n"].item() == 4
        and new.model.untrained == {"mean", "n"}
    )
    assert state.model["w"].tolist() == [10] * 2


class Asked(Cohort):
    """Every client answers with what it was sent."""

    def __init__(self) -> None:
        self.ids, self.noted = ["ada", "cy"], []

    def run(self, step: Any, down: Any = None, *, each: Any = None, strict: bool = False) -> Ups:
        return Ups([(client, Up(model=each(client).model)) for client in self.ids])

    def weighed(self, ids: Any, weights: Weights) -> None:
        self.noted.append((list(ids), weights.shares.tolist()))


def test_a_round_delivers_observes_weighs_notes_and_updates() -> None:
    @dataclass(frozen=True)
    class Own(Method):
        def deliver(self, server: Any, state: State, client_id: str) -> Down:
            return Down(model=up({"ada": 1, "cy": 4}[client_id]).model)

        def observe(self, server: Any, state: State, ups: Ups) -> State:
            return state.with_(seen=ups.ids)

        def weights(self, server: Any, state: State, ups: Ups) -> Weights:
            return Weights(np.array([2.0, 1.0]) * len(state.seen))

    cohort = Asked()
    new = Own().round(None, State(model=up(9).model), cohort)  # type: ignore[arg-type]
    assert (
        new.seen == ["ada", "cy"]
        and new.model["w"].tolist() == [2, 2]
        and cohort.noted == [(["ada", "cy"], [4, 2])]
    )

    class Wrong(Own):
        def weights(self, server: Any, state: State, ups: Ups) -> Any:
            return [1.0, 1.0]

    with pytest.raises(TypeError, match=r"Wrong.weights returned list; expected Weights\(shares\)"):
        Wrong().round(None, State(model=up(9).model), cohort)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError):
        Cohort().run(Method().client)


def test_what_the_author_of_a_method_most_likely_did_not_mean() -> None:
    class Fields(Method):
        rate: float = 0.5

    class Flags(Method):
        family: ClassVar[str] = "drift"

        def my_own_step(self) -> None: ...

    @dataclass(frozen=True)
    class Sound(Method):
        rate: float = 0.5
        wieght: int = 3  # a parameter, and no slot

        def weights(self, server: Any, state: State, ups: Ups) -> Any: ...

    @dataclass(frozen=True)
    class Misspelt(Sound):
        def delivers(self, server: Any, state: State, client_id: str) -> Any: ...

    assert mistake(Fields) == (
        "Fields has the parameter 'rate' but is no dataclass, so it would be ignored; write "
        "@dataclass(frozen=True) above the class"
    )
    assert mistake(Flags) is None and mistake(Sound) is None and mistake(Method) is None
    assert (mistake(Misspelt) or "").startswith(
        "Misspelt.delivers is never called; did you mean deliver?"
    )

    class Below(Misspelt):
        pass

    assert (mistake(Below) or "").startswith("Misspelt.delivers"), "also where it was inherited"
    assert [slot for slot in SLOTS if overridden(Sound(), slot)] == ["weights"]
