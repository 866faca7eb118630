"""Loss terms: sums, weights, and terms that are not there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.client import Client
from equipoise.losses.terms import (
    Batch,
    Loss,
    Outputs,
    distillation,
    frozen_logits,
    supervised,
    term,
)
from equipoise.models.model import Model
from tests.helpers.problems import bench_of
from tests.helpers.runs import settings, sites


def scene(model: str = "mlp") -> tuple[Client, Model, Outputs, Batch]:
    client = Client(bench_of(settings("fedavg", model), sites({"ada": 24}))[0], "ada", 1, 1, {})
    net = client.load(None)
    batch = next(client.batches(8))
    return client, net, net(batch.x), batch


def fixed(value: float) -> Loss:
    return term(lambda outputs, batch: torch.tensor(value))


def test_a_loss_is_the_weighted_sum_of_its_terms() -> None:
    _, _, outputs, batch = scene()
    assert (
        float((fixed(2) + 0.5 * fixed(4) + 3 * (fixed(1) + 2 * fixed(5)))(outputs, batch))
        == 2 + 2 + 33
    )
    assert float((-1 * fixed(4))(outputs, batch)) == -4


def test_a_term_of_weight_zero_is_not_evaluated() -> None:
    _, _, outputs, batch = scene()

    def never(outputs: Outputs, batch: Batch) -> Tensor:
        raise AssertionError("evaluated")

    assert len((supervised + 0 * term(never)).terms) == 1
    assert torch.equal((supervised + 0.0 * term(never))(outputs, batch), supervised(outputs, batch))
    assert (2 * (0 * term(never))).terms == ()


def test_an_empty_loss_is_a_zero_with_a_gradient() -> None:
    _, net, outputs, batch = scene()
    value = (0 * supervised)(outputs, batch)
    value.backward()
    assert value.item() == 0 and all(not parameter.grad.any() for parameter in net.net.parameters())


def test_terms_are_not_changed_by_arithmetic() -> None:
    first, before = 2 * supervised, list((2 * supervised).terms)
    doubled = first + 3 * first
    assert list(first.terms) == before and len(before) == 1
    assert len(doubled.terms) == 2 and len(supervised.terms) == 1


def test_supervised_is_the_tasks_own_loss() -> None:
    _, _, outputs, batch = scene()
    assert torch.equal(supervised(outputs, batch), F.cross_entropy(outputs.logits, batch.y))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_distillation_is_the_scaled_divergence_to_the_teacher_of_each_sample(
    temperature: float,
) -> None:
    _, _, outputs, batch = scene()
    teacher = torch.randn(len(batch.y) + 10, 3, generator=torch.Generator().manual_seed(0))
    batch.indices = torch.arange(9, 1, -1)
    p = (teacher[batch.indices] / temperature).softmax(1)
    expected = (
        temperature**2
        * (p * (p.log() - (outputs.logits / temperature).log_softmax(1))).sum(1).mean()
    )
    torch.testing.assert_close(distillation(teacher, temperature)(outputs, batch), expected)


def test_distillation_of_a_single_output_is_the_squared_error() -> None:
    _, net, _, batch = scene()
    outputs = Outputs(net, torch.zeros(2, 1), torch.tensor([[1.0], [3.0]]))
    batch.indices = torch.tensor([1, 0])
    assert distillation(torch.tensor([[5.0], [1.0]]))(outputs, batch).item() == (0 + 4) / 2


def test_a_teacher_that_is_a_model_is_asked_in_evaluation_mode_and_stays_as_it_was() -> None:
    client, _, _, batch = scene("cnn")
    teacher = client.load(None)
    teacher.net.train()
    before = teacher.tree()
    logits = frozen_logits(teacher, batch)
    assert not logits.requires_grad and teacher.net.training
    assert all(torch.equal(before[name], value) for name, value in teacher.tree().items())
    torch.testing.assert_close(logits, client.predict(teacher)[batch.indices])
