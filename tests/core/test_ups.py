"""The replies of an exchange, and weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.method import Ups, Weights
from equipoise.records import Up
from equipoise.tree import Tree


def up(number: float) -> Up:
    model = Tree(
        {"w": torch.full((2,), float(number)), "mean": torch.tensor(10.0 * number), "n": torch.tensor(int(number))}, "net", ["mean", "n"]
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
    assert mean["w"].tolist() == [2.75] * 2 and mean["mean"].item() == 27.5 and mean["n"].item() == 4
    assert mean.untrained == {"mean", "n"}


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
    all_of_them = Ups([(str(k), Up(v=torch.from_numpy(draw.standard_normal(20) * 10.0 ** (k % 4)))) for k in range(40)])
    left = Ups([(client, None if client in ("2", "17") else reply) for client, reply in all_of_them.positions])
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
