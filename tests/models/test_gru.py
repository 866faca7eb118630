from __future__ import annotations

import pytest
import torch

from equipoise.models import build
from equipoise.streams import default_generator, torch_stream
from equipoise.task import Task


def made(events=6, **options):
    with default_generator(0, "gru"):
        return build(
            {"name": "gru", "codes": 9, "postals": 4, "embedding": 5, "hidden": 7, **options},
            Task("classification", (1 + events, 4), 2),
        ).eval()


def patients(lengths, events=6):
    x = torch.rand(len(lengths), 1 + events, 4, generator=torch_stream(0, "patients"))
    x[:, 1:, 0] = torch.arange(events) % 9 + 1
    x[:, 0] = torch.tensor(
        [[place % 2, place % 4, length, 0] for place, length in enumerate(lengths)]
    )
    return x


def test_parameter_count_at_the_papers_sizes():
    model = build("gru", Task("classification", (9, 4), 2))
    count = {
        name: sum(one.numel() for one in part.parameters())
        for name, part in model.features.named_children()
    }
    d = 128 + 3
    assert count["gru"] == 2 * (3 * 256 * (d + 256) + 6 * 256) + 2 * (
        3 * 256 * (512 + 256) + 6 * 256
    )
    assert count["project"] == 512 * 256 + 256 and count["score"] == 256
    assert sum(one.numel() for one in model.head.parameters()) == 536 * 2 + 2


def test_attention_sums_to_one_and_is_zero_on_padding():
    model, x = made(), patients([6, 3, 1])
    weights = model.features.attention(*model.features.states(x))
    torch.testing.assert_close(weights.sum(1), torch.ones(3))
    assert (weights[1, 3:] == 0).all() and (weights[1, :3] > 0).all()
    assert weights[2].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_padding_rows_and_their_number_do_not_matter():
    model, x = made(), patients([4, 2, 0])
    other = torch.cat([x, torch.full((3, 5, 4), 7.0)], dim=1)
    for place, length in enumerate([4, 2, 0]):
        other[place, 1 + length :] = 7.0
    torch.testing.assert_close(model(other), model(x))


def test_order_of_patients_does_not_matter():
    model, x = made(), patients([1, 6, 0, 3])
    order = [2, 0, 3, 1]
    torch.testing.assert_close(model(x[order]), model(x)[order])


def test_patient_alone_and_in_company():
    model, x = made(), patients([5, 2])
    torch.testing.assert_close(model(x[1:]), model(x)[1:])


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_every_fact_within_the_history_matters(place):
    model, x = made(), patients([3])
    changed = x.clone()
    changed[0, place[0], place[1]] += 1
    assert not torch.allclose(model(changed), model(x))


def test_indices_past_the_table_are_one_unknown():
    model, x = made(), patients([3])
    first, second = x.clone(), x.clone()
    first[0, 1, 0], second[0, 1, 0] = 10, 5000
    first[0, 0, 1], second[0, 0, 1] = 4, 77
    assert torch.equal(model(first), model(second))
    assert not torch.allclose(model(first), model(x))


def test_gradient_reaches_every_part_with_an_empty_history_in_the_batch():
    model, x = made().train(), patients([0, 4])
    model(x).sum().backward()
    assert all(torch.isfinite(one.grad).all() for one in model.parameters())
    assert model.features.code.weight.grad[0].any()


@pytest.mark.parametrize("shape", [(4,), (1, 4), (5, 3), (3, 8, 8)])
def test_other_samples_are_refused(shape):
    with pytest.raises(ValueError, match="row 0"):
        build("gru", Task("classification", shape, 2))
