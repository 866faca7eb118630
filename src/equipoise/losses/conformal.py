"""Conformal sets (RAPS, as FedType uses them).

A conformal set holds the classes that a model considers possible. It is calibrated to contain the
true class with a chosen probability. See Angelopoulos et al., Uncertainty Sets for Image
Classifiers using Conformal Prediction, ICLR 2021; without its random tie-breaking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from equipoise.validation.arrays import Numbers, Values, like, tensor

FEWEST = 10  # samples for a threshold
COLDEST, HOTTEST = (
    0.1,
    10.0,
)  # temperatures: labels that are all predicted right, or all wrong, would have it run away


@dataclass(frozen=True)
class Conformal:
    """A calibrated predictor of sets.

    Classes are added by decreasing probability until their sum, with a penalty for every class
    after `k_reg`, exceeds the threshold.

    Attributes:
        temperature: The temperature of the softmax.
        threshold: The threshold of the sum; infinite includes all classes.
        k_reg: The number of classes without a penalty.
        penalty: The penalty of every further class.
    """

    temperature: float = 1.0
    threshold: float = math.inf  # infinite: all classes
    k_reg: int = 5
    penalty: float = 0.0

    def sets(self, logits: Values) -> Values:
        """Return a mask of the classes in the set of each sample; no set is empty.

        >>> Conformal(threshold=0.7).sets(np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]))
        array([[ True,  True, False],
               [False, False,  True]])
        """
        sums, order = self._sums(logits)
        # Sums rise along a row, so that the number of those within the threshold is the rank of the
        # first beyond it, counted from 0.
        size = (sums <= self.threshold).sum(1, keepdim=True) + 1
        ranked = torch.arange(sums.shape[1], device=sums.device) < size
        return like(torch.zeros_like(ranked).scatter(1, order, ranked), logits)

    def scores(self, logits: Numbers, labels: Numbers) -> torch.Tensor:
        """Return the smallest threshold that includes each label: the sum up to its rank."""
        sums, order = self._sums(logits)
        return sums[order == tensor(labels).long().to(order.device)[:, None]]

    def _sums(self, logits: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cumulative probabilities with penalties by rank, and the classes in that order.

        The sums are float64. Of equal probabilities the first class comes first.
        """
        chances = torch.softmax(tensor(logits).detach().double() / self.temperature, 1)
        ranked, order = chances.sort(dim=1, descending=True, stable=True)
        past = torch.arange(1, chances.shape[1] + 1, device=chances.device) - self.k_reg
        return ranked.cumsum(1) + self.penalty * past.clamp(min=0).double(), order


def calibrated(
    logits: Numbers,
    labels: Numbers,
    alpha: float,
    k_reg: int,
    penalty: float,
    rule: Literal["converged", "released"] = "converged",
) -> Conformal:
    """Return a predictor whose sets contain the labels of a share 1 - alpha of the samples.

    With fewer than 10 samples the sets contain all classes.

    Args:
        logits: Logits (samples, classes).
        labels: The labels of the samples.
        alpha: The share of labels outside of their sets.
        k_reg: The number of classes without a penalty.
        penalty: The penalty of every further class.
        rule: The rule of `fitted_temperature`.

    >>> calibrated(np.zeros((9, 3)), np.zeros(9), 0.1, 2, 1.0).sets(np.zeros((1, 3)))
    array([[ True,  True,  True]])
    """
    if len(tensor(labels)) < FEWEST:
        return Conformal(k_reg=k_reg, penalty=penalty)
    scaled = Conformal(fitted_temperature(logits, labels, rule), math.inf, k_reg, penalty)
    threshold = float(
        np.quantile(scaled.scores(logits, labels).cpu().numpy(), 1 - alpha, method="higher")
    )
    return Conformal(scaled.temperature, threshold, k_reg, penalty)


def fitted_temperature(
    logits: Numbers, labels: Numbers, rule: Literal["converged", "released"] = "converged"
) -> float:
    """Return the T between 0.1 and 10 for which softmax(logits / T) is most likely.

    Args:
        logits: Logits (samples, classes).
        labels: The labels of the samples.
        rule: "released" follows the authors' code: at most ten steps of 0.01 times the slope from
            1.3, and none after a change below 0.01, so that T hardly changes.

    >>> logits = np.log([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    >>> round(fitted_temperature(logits, [0, 0, 1]), 6)  # 0.9 ** (1 / T) : 0.1 ** (1 / T) = 2 : 1
    3.169925
    """
    scores, positions = tensor(logits).detach().double(), tensor(labels).long()[:, None]

    def slope(temperature: float) -> float:
        """Return T^2 times the derivative of the negative log-likelihood by T; it rises with T."""
        expected = (torch.softmax(scores / temperature, 1) * scores).sum(1)
        return float((scores.gather(1, positions).squeeze(1) - expected).mean())

    if rule == "released":
        temperature = 1.3
        for _ in range(10):
            change = 0.01 * slope(temperature) / temperature**2
            temperature -= change
            if abs(change) < 0.01:
                break
        return temperature
    low, high = COLDEST, HOTTEST
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return math.sqrt(low * high)


def consensus(own: Values, other: Numbers) -> Values:
    """Return the mean agreement of two models' sets.

    It is intersection over union, or over the other's set where the own set is larger.

    >>> consensus(np.array([[True, True, False]]), [[True, False, False]])  # a superset agrees
    array(1.)
    """
    first, second = tensor(own).bool(), tensor(other).bool()
    both, either = (first & second).sum(1), (first | second).sum(1)
    whole = torch.where(first.sum(1) <= second.sum(1), either, second.sum(1))
    return like((both.double() / whole).mean(), own)


def ranking_loss(logits: Values, sets: Numbers) -> Values:
    """Return by how much classes outside of the set exceed those inside.

    It is the mean over samples and over pairs of a class inside and a class outside.

    >>> float(ranking_loss(np.array([[1.0, 3.0, 0.0]]), [[True, False, False]]))
    1.0
    """
    scores = tensor(logits)
    inside = tensor(sets).bool().to(scores.device)
    pairs = inside[:, :, None] & ~inside[:, None, :]
    excess = torch.relu(scores[:, None, :] - scores[:, :, None]) * pairs
    return like((excess.sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)).mean(), logits)
