"""FairFed (Ezzeldin et al., 2023).

Yahya H. Ezzeldin, Shen Yan, Chaoyang He, Emilio Ferrara and A. Salman Avestimehr. FairFed: Enabling
Group Fairness in Federated Learning. Proceedings of the AAAI Conference on Artificial Intelligence
37(6), pages 7494-7502, 2023. https://arxiv.org/abs/2110.00857
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge

from equipoise.client import Client
from equipoise.method import Method, NonNegative, Ups, Weights
from equipoise.records import PerClient, State, Up
from equipoise.server import Server
from equipoise.task import Task
from equipoise.tree import Tree

NO_GROUP = "all"  # of every sample if data.groups is not set


@dataclass(frozen=True)
class FairFed(Method):
    """Weigh clients more whose local fairness is close to that of all clients together.

    Every client measures the received model on its training data. The server moves its weight by
    the distance between its fairness F_k and the global one. Without `data.groups` no F_k
    exists, and accuracies are compared instead.

    A client sends, besides its model, the number of its samples and of those that the model has
    right, and per group how many samples (of the positive class) there are and how many of them
    are called positive.

    Attributes:
        beta: Fairness budget beta of Algorithm 1; with 0 it is FedAvg.
        metric: F is the difference between groups in equal opportunity (EOD) or in
            demographic parity (SPD).
        column: Column of `data.groups` that has the sensitive attribute A; by default the first.
        reference: Group with A = 1; all others have A = 0. By default the one with most samples.
        positive: Class that counts as positive, numbered from 0.
    """

    paper = "Ezzeldin et al., FairFed: Enabling Group Fairness in Federated Learning, AAAI 2023"
    family = "aggregation"
    year = 2023
    fairness = "groups"
    passes = "E·T + F"
    needs = ("classes",)
    compares_groups: ClassVar[bool] = True
    composable_weights: ClassVar[bool] = True

    beta: NonNegative = 1.0
    metric: Literal["opportunity", "parity"] = "opportunity"
    column: str = ""
    reference: str = ""
    positive: Annotated[int, Ge(0)] = 1

    def check(self, task: Task) -> None:
        """Refuse a positive class that there is not."""
        check_positive("fairfed", self.positive, task)

    def start(self, server: Server) -> State:
        """Return the initial model; no client has a weight of its own yet."""
        return super().start(server).with_(omega=PerClient())

    def before(self, client: Client, received: Tree | None) -> Up:
        """Report accuracy and counts by group of the received model, theta^t."""
        y = client.train.y
        if not len(y):
            return Up(correct=0, samples=0, groups=[], called=[], counted=[])
        predicted = client.predict(client.load(received)).argmax(1)
        chosen = torch.ones(len(y), dtype=torch.bool)
        if self.metric == "opportunity":
            chosen = y == self.positive
        groups = np.array(group_names(client, self.column))
        names = sorted(set(groups.tolist()))
        called = []
        counted = []
        for name in names:
            own = chosen & torch.from_numpy(groups == name)
            counted.append(int(own.sum()))
            called.append(int((predicted[own] == self.positive).sum()))
        correct = int((predicted == y).sum())
        return Up(correct=correct, samples=len(y), groups=names, called=called, counted=counted)

    def observe(self, server: Server, state: State, ups: Ups) -> State:
        """Move the weights: omega_k - beta (Delta_k - mean of Delta), Algorithm 1."""
        total = sum(server.sizes.values())
        initial = {client: server.sizes[client] / total for client in ups.ids}  # n_k / sum n_i
        omega = np.array([state.omega.get(client, initial[client]) for client in ups.ids])
        delta = self._distances(ups)
        omega = omega - self.beta * (delta - delta.mean())
        return state.with_(omega=state.omega.put(dict(zip(ups.ids, omega.tolist(), strict=True))))

    def _distances(self, ups: Ups) -> np.ndarray:
        """Return Delta_k = |F_global - F_k|, or |Acc_k - Acc| where F_k is undefined."""
        counts = [_by_group(up) for up in ups]
        whole: dict[str, np.ndarray] = {}
        for own in counts:
            for name, pair in own.items():
                whole[name] = whole.get(name, np.zeros(2)) + pair
        reference = self.reference or _largest(whole)
        f_global = _difference(whole, reference)
        accuracy = ups.numbers("correct").sum() / max(1.0, ups.numbers("samples").sum())
        distances = []
        for up, own in zip(ups, counts, strict=True):
            f_k = _difference(own, reference)
            if f_k is None or f_global is None:
                distances.append(abs(up.correct / max(1, up.samples) - accuracy))
            else:
                distances.append(abs(f_global - f_k))
        return np.array(distances)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return omega_k; below 0 a client does not count, since no mean has such weights."""
        shares = np.array([max(0.0, state.omega[client]) for client in ups.ids])
        if not shares.any():
            shares = np.array([server.sizes[client] for client in ups.ids], dtype=np.float64)
        return Weights(shares)


def check_positive(method: str, positive: int, task: Task) -> None:
    """Refuse a positive class that a task has not."""
    if task.classifies and positive >= task.outputs:
        raise ValueError(
            f"{method}: expected positive to be one of the {task.outputs} classes, numbered from "
            f"0, got {positive}"
        )


def group_names(client: Client, column: str = "") -> list[str]:
    """Return the group of each training sample; all have one without `data.groups`.

    Args:
        client: The client.
        column: The column; by default the first of `data.groups`.
    """
    groups = client.train.groups
    if groups is None:
        return [NO_GROUP] * len(client.train)
    return groups.names_of(column or groups.columns[0])


def _by_group(up: Up) -> dict[str, np.ndarray]:
    """Return group -> samples called positive, and all samples."""
    pairs = zip(up.groups, up.called, up.counted, strict=True)
    return {name: np.array([called, counted], dtype=np.float64) for name, called, counted in pairs}


def _largest(counts: dict[str, np.ndarray]) -> str:
    """Return the group with most samples."""
    return max(sorted(counts), key=lambda name: float(counts[name][1]), default="")


def _difference(counts: dict[str, np.ndarray], reference: str) -> float | None:
    """Return F, P(called | A = 0) - P(called | A = 1); None if a group has no sample."""
    others = sum((pair for name, pair in counts.items() if name != reference), np.zeros(2))
    own = counts.get(reference, np.zeros(2))
    if not others[1] or not own[1]:
        return None
    return float(others[0] / others[1] - own[0] / own[1])
