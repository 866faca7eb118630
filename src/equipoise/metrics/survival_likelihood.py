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
    risks = outputs.squeeze(1)
    time, event = time_and_event(targets)
    order = torch.argsort(time, descending=True, stable=True)
    ordered = time[order]
    # The sum over all patients with a longer or equal time: up to the last position of a tie.
    last = torch.searchsorted(-ordered, -ordered, right=True) - 1
    sums = torch.logcumsumexp(risks[order], 0)[last]
    losses = (sums - risks[order]) * event[order]
    return losses.sum() / len(losses)


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
    time, event = time_and_event(targets)
    intervals = outputs.shape[1]
    position = time * intervals
    event_interval = (position.ceil() - 1).clamp(min=0)
    survived = torch.where(event, event_interval, position.floor())[:, None]
    numbers = torch.arange(intervals, device=outputs.device)
    has_event = event[:, None] & (numbers == event_interval[:, None])
    losses = F.binary_cross_entropy_with_logits(
        outputs, has_event.to(outputs.dtype), reduction="none"
    )
    return (losses * ((numbers < survived) | has_event)).sum() / len(losses)


def survival_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Cox loss of one output, or the logistic hazard of several."""
    if outputs.shape[1] == 1:
        return cox(outputs, targets)
    return logistic_hazard(outputs, targets)
