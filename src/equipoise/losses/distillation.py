"""Losses of outputs: distillation and focal loss."""

from __future__ import annotations

import torch
from torch.nn import functional

from equipoise.validation.arrays import Numbers, Values, like, tensor


def kl_divergence(teacher_logits: Values, student_logits: Numbers) -> Values:
    """Return KL(teacher || student) of each sample's predicted classes.

    Args:
        teacher_logits: Logits with classes in the last dimension.
        student_logits: Logits of the same shape.

    >>> import numpy as np
    >>> kl_divergence(np.log([[0.9, 0.1]]), np.log([[0.1, 0.9]])).round(6)
    array([1.75778])
    """
    teacher = tensor(teacher_logits)
    student = tensor(student_logits).to(teacher.device)
    normaliser = torch.logsumexp(teacher, -1, keepdim=True)
    shares = torch.exp(teacher - normaliser)
    # The gradient of this form is softmax(student) - shares: exactly 0 for equal logits. Its value
    # loses digits to
    # cancellation, so the value comes from log-probabilities instead.
    smooth = (
        torch.logsumexp(student, -1)
        - normaliser.squeeze(-1)
        + (shares * (teacher - student)).sum(-1)
    )
    with torch.no_grad():
        gap = torch.log_softmax(teacher, -1) - torch.log_softmax(student, -1)
        value = (shares * gap).sum(-1).clamp(min=0)
    return like(value + (smooth - smooth.detach()), teacher_logits)


def distillation_loss(
    student_logits: Values, teacher_logits: Numbers, temperature: float = 1.0
) -> Values:
    """Return temperature^2 times the batch mean of KL(teacher || student) at that temperature.

    See Hinton et al., 2015, and FedAKD, Eq. 2 and 5. The sum is over classes, the mean over
    samples. KDIA leaves out the factor: divide by temperature^2. Gradients reach both logits:
    detach the teacher's.

    Args:
        student_logits: Logits (batch, classes).
        teacher_logits: Logits of the same shape.
        temperature: The temperature, positive.

    Raises:
        ValueError: If the shapes differ, the batch is empty or the temperature is not positive.

    >>> import numpy as np
    >>> float(distillation_loss(np.log([[0.1, 0.9]]), np.log([[0.9, 0.1]]))).__round__(6)
    1.75778
    """
    student, teacher = tensor(student_logits), tensor(teacher_logits)
    if student.shape != teacher.shape or student.ndim < 2 or student.numel() == 0:
        raise ValueError(
            "student and teacher need the same logits (batch, classes); got "
            f"{tuple(student.shape)} and {tuple(teacher.shape)}"
        )
    if not temperature > 0:
        raise ValueError(f"the temperature has to be positive; got {temperature}")
    return like(
        kl_divergence(teacher / temperature, student / temperature).mean() * temperature**2,
        student_logits,
    )


def focal_loss(logits: Values, labels: Numbers, gamma: float = 2.0) -> Values:
    """Return the batch mean of -(1 - p)^gamma ln p (Lin et al., ICCV 2017).

    Args:
        logits: Logits (batch, classes).
        labels: The labels; p is the predicted probability of the label.
        gamma: The exponent; 0 is cross-entropy.

    Raises:
        ValueError: If gamma is negative.

    >>> import numpy as np
    >>> float(focal_loss(np.log([[0.9, 0.1]]), [0], gamma=2.0)).__round__(8)
    0.00105361
    """
    if gamma < 0:
        raise ValueError(f"gamma must not be negative; got {gamma}")
    scores, classes = tensor(logits), tensor(labels).long()
    if gamma == 0:
        return like(functional.cross_entropy(scores, classes), logits)
    chance = torch.log_softmax(scores, -1).gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    # Without the floor the derivative of 0^gamma is infinite for gamma < 1, and NaN after the
    # product with ln 1 = 0.
    doubt = (-torch.expm1(chance)).clamp(min=torch.finfo(scores.dtype).tiny)
    return like(-(doubt**gamma * chance).mean(), logits)


def disagreement(logits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the batch mean of the Jensen-Shannon divergence between two predictions (FedCOG).

    Probabilities are clamped to 0.01 and 0.99.

    >>> logits = torch.tensor([[50.0, 0.0]])
    >>> round(float(disagreement(logits, logits.flip(1))), 4)
    0.6371
    """
    p = logits.softmax(1).clamp(0.01, 0.99)
    q = others.softmax(1).clamp(0.01, 0.99)
    middle = ((p + q) / 2).log()
    return (p * (p.log() - middle) + q * (q.log() - middle)).sum(1).mean() / 2
