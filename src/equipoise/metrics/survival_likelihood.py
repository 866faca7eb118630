"""Negative log-likelihoods of survival models, of tensors: losses and the metric `loss` use them.

A target is the time of the event, or minus the time of censoring; see `task.Task`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def time_and_event(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the times, and True where the event was observed.

    >>> time_and_event(torch.tensor([3.0, -2.0, -0.0]))
    (tensor([3., 2., 0.]), tensor([ True, False, False]))
    """
    return targets.abs(), ~torch.signbit(targets)


def cox(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log partial likelihood of a batch per patient (Cox, 1972).

    The risk set of an event are the patients of the batch who were still observed at its time. Ties
    are handled as by Breslow (1974). The sum over events is divided by the number of patients. A
    batch without an event has the loss 0 and no gradient.

    Args:
        outputs: Log risks (batch, 1).
        targets: Times, negative where censored.

    >>> round(float(cox(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([3.0, -2.0, 1.0]))), 6)
    0.135869
    """
    losses, _ = _cox_losses(outputs, targets)
    return losses.sum() / len(losses)


def _cox_losses(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the terms of the partial likelihood by falling time, and the patients' positions."""
    risks = outputs.squeeze(1)
    time, event = time_and_event(targets)
    order = torch.argsort(time, descending=True, stable=True)
    ordered = time[order]
    # The sum over all patients with a longer or equal time: up to the last position of a tie.
    last = torch.searchsorted(-ordered, -ordered, right=True) - 1
    sums = torch.logcumsumexp(risks[order], 0)[last]
    return (sums - risks[order]) * event[order], order


def logistic_hazard(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of discrete times per patient.

    See Kvamme and Borgan, Continuous and discrete-time survival prediction with neural networks,
    Lifetime Data Analysis 27, 2021. Interval k of K contains the times above k/K and up to
    (k + 1)/K of the horizon, and the first also 0. A patient contributes the binary cross-entropy
    of every interval that the patient survived, and of the interval with the event. An interval in
    which a patient was censored is left out, and so are events after the horizon.

    Args:
        outputs: Logits of the hazard (batch, intervals).
        targets: Times as shares of the horizon, negative where censored.

    >>> round(float(logistic_hazard(torch.zeros(1, 4), torch.tensor([0.4]))), 6)  # 2 ln 2
    1.386294
    """
    return _hazard_losses(outputs, targets).sum() / len(outputs)


def _hazard_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each patient and interval; 0 where it does not count."""
    has_event, survived = intervals_of(targets, outputs.shape[1])
    losses = F.binary_cross_entropy_with_logits(
        outputs, has_event.to(outputs.dtype), reduction="none"
    )
    return losses * (survived | has_event)


def intervals_of(targets: Tensor, intervals: int) -> tuple[Tensor, Tensor]:
    """Return the intervals with an event and those that were survived, as two masks.

    Args:
        targets: Times as shares of the horizon, negative where censored.
        intervals: The number of intervals.

    >>> intervals_of(torch.tensor([0.4, -0.8]), 4)
    (tensor([[False,  True, False, False],
            [False, False, False, False]]), tensor([[ True, False, False, False],
            [ True,  True,  True, False]]))
    """
    time, event = time_and_event(targets)
    position = time * intervals
    event_interval = (position.ceil() - 1).clamp(min=0)
    survived = torch.where(event, event_interval, position.floor())[:, None]
    numbers = torch.arange(intervals, device=targets.device)
    has_event = event[:, None] & (numbers == event_interval[:, None])
    return has_event, numbers < survived


def survival_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Cox loss of one output, or the logistic hazard of several."""
    if outputs.shape[1] == 1:
        return cox(outputs, targets)
    return logistic_hazard(outputs, targets)


def patient_likelihoods(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the likelihood of each patient's time.

    Of a Cox model it is the patient's term of the partial likelihood among these patients: the
    probability that this patient is the next to have the event; 1 for a censored patient.

    >>> patient_likelihoods(torch.zeros(3, 1), torch.tensor([1.0, 2.0, -3.0])).numpy().round(4)
    array([0.3333, 0.5   , 1.    ], dtype=float32)
    """
    if outputs.shape[1] > 1:
        return torch.exp(-_hazard_losses(outputs, targets).sum(1))
    losses, order = _cox_losses(outputs, targets)
    return torch.exp(-losses)[torch.argsort(order)]
