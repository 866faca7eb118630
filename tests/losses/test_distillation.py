from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from equipoise.losses import distillation_loss, focal_loss, kl_divergence
from equipoise.streams import torch_stream


def logits(*shape, name="a", scale=3.0, dtype=torch.float64):
    return scale * torch.randn(*shape, generator=torch_stream(0, name), dtype=dtype)


def chances(row):
    amounts = [math.exp(one - max(row)) for one in row]
    return [one / sum(amounts) for one in amounts]


def distilled(student, teacher, temperature):
    total = 0.0
    for own, wanted in zip(student, teacher, strict=True):
        q, p = (
            chances([one / temperature for one in own]),
            chances([one / temperature for one in wanted]),
        )
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return temperature**2 * total / len(student)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
@pytest.mark.parametrize("shape", [(1, 2), (7, 10)])
def test_distillation_against_plain_loops(shape, temperature):
    student, teacher = logits(*shape), logits(*shape, name="b")
    expected = distilled(student.tolist(), teacher.tolist(), temperature)
    assert float(distillation_loss(student, teacher, temperature)) == pytest.approx(
        expected, rel=1e-12
    )


def test_gradient_is_temperature_times_difference_of_chances():
    student, teacher = logits(5, 4).requires_grad_(), logits(5, 4, name="b")
    distillation_loss(student, teacher, 3.0).backward()
    expected = 3.0 * (torch.softmax(student / 3, 1) - torch.softmax(teacher / 3, 1)) / 5
    torch.testing.assert_close(student.grad, expected.detach(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_equal_logits_have_loss_and_gradient_exactly_zero(temperature):
    student = logits(50, 10, dtype=torch.float32).requires_grad_()
    loss = distillation_loss(student, student.detach().clone(), temperature)
    loss.backward()
    assert loss.item() == 0.0 and not student.grad.any()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([1e-4, 1.0, 60.0]))
def test_never_negative(seed, scale):
    teacher = torch.randn(4, 5, generator=torch_stream(seed, "t"))
    student = teacher + scale * torch.randn(4, 5, generator=torch_stream(seed, "s"))
    assert (kl_divergence(teacher, student) >= 0).all()


def test_small_divergence_keeps_its_digits_in_float32():
    teacher = logits(20, 10, scale=1.0, dtype=torch.float32)
    student = teacher + 1e-2 * logits(20, 10, name="b", scale=1.0, dtype=torch.float32)
    exact = kl_divergence(teacher.double(), student.double())
    torch.testing.assert_close(
        kl_divergence(teacher, student).double(), exact, rtol=1e-2, atol=1e-7
    )


def test_differs_from_cross_entropy_form_by_the_teachers_entropy():
    student, teacher = logits(6, 3), logits(6, 3, name="b")
    p = torch.softmax(teacher, 1)
    cross = -(p * torch.log_softmax(student, 1)).sum(1).mean()
    entropy = -(p * torch.log_softmax(teacher, 1)).sum(1).mean()
    torch.testing.assert_close(distillation_loss(student, teacher), cross - entropy)


def test_binary_logistic_gradient():
    x, w, start = logits(40, 3), logits(3, name="w").requires_grad_(), logits(3, name="w0")
    both = [torch.stack([torch.zeros(40, dtype=torch.float64), x @ one], 1) for one in (w, start)]
    (gradient,) = torch.autograd.grad(distillation_loss(*both), w)
    expected = ((torch.sigmoid(x @ w) - torch.sigmoid(x @ start)).unsqueeze(1) * x).mean(0)
    torch.testing.assert_close(gradient, expected.detach(), rtol=1e-12, atol=1e-15)


def test_reversed_direction_passes_gradient_through_both_places():
    student, teacher = logits(4, 3).requires_grad_(), logits(4, 3, name="b")
    (gradient,) = torch.autograd.grad(distillation_loss(teacher, student), student)
    q, p = torch.log_softmax(student, 1), torch.log_softmax(teacher, 1)
    (expected,) = torch.autograd.grad((q.exp() * (q - p)).sum(1).mean(), student)
    torch.testing.assert_close(gradient, expected)


def test_saturated_logits_stay_finite():
    student = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    loss = distillation_loss(student, torch.tensor([[-1000.0, 1000.0]]))
    loss.backward()
    assert loss.item() == 2000.0 and student.grad.tolist() == [[1.0, -1.0]]


def test_arrays_in_arrays_out():
    value = distillation_loss(np.log([[0.9, 0.1]]), np.log([[0.1, 0.9]]))
    assert isinstance(value, np.ndarray) and value == pytest.approx(0.8 * math.log(9))


@pytest.mark.parametrize(
    "student, teacher, temperature",
    [((2, 3), (2, 4), 1.0), ((0, 3), (0, 3), 1.0), ((3,), (3,), 1.0), ((2, 3), (2, 3), 0.0)],
)
def test_distillation_refuses(student, teacher, temperature):
    with pytest.raises(ValueError):
        distillation_loss(torch.zeros(student), torch.zeros(teacher), temperature)


def test_classes_stand_last_whatever_stands_before_them():
    teacher, student = logits(2, 4, 3), logits(2, 4, 3, name="b").requires_grad_()
    rows = student.detach().reshape(8, 3).requires_grad_()
    value, flat = kl_divergence(teacher, student), kl_divergence(teacher.reshape(8, 3), rows)
    assert value.shape == (2, 4) and torch.equal(value.reshape(8), flat)
    value.sum().backward()
    flat.sum().backward()
    torch.testing.assert_close(student.grad.reshape(8, 3), rows.grad)
    labels = torch.arange(8) % 3
    torch.testing.assert_close(
        focal_loss(teacher, labels.reshape(2, 4)),
        focal_loss(teacher.reshape(8, 3), labels, gamma=2.0),
    )


def test_one_class_of_one_sample_leaves_nothing_to_teach():
    assert float(distillation_loss(torch.tensor([[3.0]]), torch.tensor([[-1.0]]))) == 0


def test_focal_without_focus_is_cross_entropy():
    scores, labels = logits(9, 4), torch.arange(9) % 4
    assert torch.equal(
        focal_loss(scores, labels, gamma=0), functional.cross_entropy(scores, labels)
    )


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_against_plain_loops(gamma):
    scores, labels = logits(9, 4), torch.arange(9) % 4
    picked = [
        chances(row)[label] for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    expected = sum(-((1 - p) ** gamma) * math.log(p) for p in picked) / 9
    assert float(focal_loss(scores, labels, gamma)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_focal_gradient_of_a_certain_prediction_is_finite(gamma):
    scores = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    focal_loss(scores, torch.tensor([0, 0]), gamma).backward()
    assert torch.isfinite(scores.grad).all() and not scores.grad[0].any()
    torch.testing.assert_close(scores.grad[1], torch.tensor([-0.5, 0.5]))


def test_focal_refuses_negative_gamma():
    with pytest.raises(ValueError, match="gamma"):
        focal_loss(torch.zeros(1, 2), torch.tensor([0]), gamma=-1.0)
