"""FedMinMax (Papadaki et al., 2022).

Afroditi Papadaki, Natalia Martinez, Martin Bertran, Guillermo Sapiro and Miguel Rodrigues. Minimax
Demographic Group Fairness in Federated Learning. ACM Conference on Fairness, Accountability, and
Transparency (FAccT) 2022, pages 142-159. https://arxiv.org/abs/2201.08304
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from equipoise.client import Client
from equipoise.losses.terms import Batch, Loss, supervised, term
from equipoise.method import Cohort, Method, NonNegative, Ups, Weights
from equipoise.methods.fairfed import group_names
from equipoise.models import Outputs
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import Tree
from equipoise.weighting.simplex import projected


@dataclass(frozen=True)
class FedMinMax(Method):
    """Minimise the risk of the group that is worst off over all clients.

    Comments give the lines of Algorithm 1. The server holds a weight mu_a of each group a and
    raises it with the group's risk. Clients weigh their samples by w_a = mu_a / rho_a, where rho_a
    is the group's share of all samples. Without `data.groups` there is one group, and it is
    FedAvg.

    A client sends once how many samples each of its groups has, and in every round, besides its
    model, the mean loss of each of its groups. It receives the weights of all groups.

    Attributes:
        eta_mu: Step size eta_mu of the weights mu; with 0 it is FedAvg.
        column: Column of `data.groups`; by default the first.
    """

    paper = (
        "Papadaki et al., Minimax Demographic Group Fairness in Federated Learning, FAccT 2022, "
        "Algorithm 1"
    )
    family = "aggregation"
    year = 2022
    fairness = "groups"
    exchanges = "1; once 1"
    passes = "E·T + F"
    needs = ("classes",)
    compares_groups: ClassVar[bool] = True

    eta_mu: NonNegative = 0.1
    column: str = ""

    def start(self, server: Server) -> State:
        """Return the initial model theta^0; groups are not known yet."""
        return super().start(server).with_(groups=[], rho=torch.zeros(0), mu=torch.zeros(0))

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        """Compute rho_a, the share of each group, and start with mu = rho."""
        ups = everyone.run(self.count)
        totals: dict[str, int] = {}
        for up in ups:
            for name, size in zip(up.groups, up.sizes, strict=True):
                totals[name] = totals.get(name, 0) + size
        names = sorted(totals)
        sizes = torch.tensor([totals[name] for name in names], dtype=torch.float64)
        rho = sizes / sizes.sum()
        return state.with_(groups=names, rho=rho, mu=rho)

    def count(self, client: Client, down: Down) -> Up:
        """Report the size of each group, n_{a,k}."""
        names, sizes = np.unique(group_names(client, self.column), return_counts=True)
        return Up(groups=names.tolist(), sizes=sizes.tolist())

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send theta and the weights w_a = mu_a / rho_a."""
        return Down(model=state.model, groups=state.groups, w=state.mu / state.rho)

    def client(self, client: Client, down: Down) -> Up:
        """Report the risks of the received model, then train on the weighted risk."""
        weight = dict(zip(down.groups, down.w.tolist(), strict=True))
        names = group_names(client, self.column)
        model = client.load(down.model)
        risks = self._risks(client, down.model, names)  # r_{a,k}(theta^{t-1})
        # A group that no client had when shares were counted has the weight 1.
        by_sample = torch.tensor([weight.get(name, 1.0) for name in names])
        # theta_k <- theta - eta_theta gradient of r_k(theta; w)
        client.fit(model, weighted(by_sample))
        return Up(model=model, groups=list(risks), risks=list(risks.values()), sizes=_sizes(names))

    def _risks(self, client: Client, received: Tree, names: list[str]) -> dict[str, float]:
        """Return the mean loss of each group of the training data."""
        logits = client.predict(client.load(received))
        y = client.train.y
        groups = np.array(names)
        risks = {}
        for name in sorted(set(names)):
            own = torch.from_numpy(np.flatnonzero(groups == name))
            losses = torch.nn.functional.cross_entropy(logits[own].double(), y[own])
            risks[name] = float(losses)
        return risks

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Average the models by n_k / n, and take a step of projected ascent on mu."""
        state = super().update(server, state, ups, weights)
        risk = self._global_risks(state, ups)
        # mu <- projection onto the simplex of mu + eta_mu r(theta^{t-1})
        mu = projected(state.mu.numpy() + self.eta_mu * risk)
        return state.with_(mu=torch.from_numpy(mu))

    def _global_risks(self, state: State, ups: Ups) -> np.ndarray:
        """Return r_a, the mean of r_{a,k} weighted by n_{a,k}.

        A group without a sample in this round has the mean risk, which leaves its weight.
        """
        total = dict.fromkeys(state.groups, 0.0)
        count = dict.fromkeys(state.groups, 0)
        for up in ups:
            for name, risk, size in zip(up.groups, up.risks, up.sizes, strict=True):
                if name in total:
                    total[name] += size * risk
                    count[name] += size
        mean = sum(total.values()) / max(1, sum(count.values()))
        risks = []
        for name in state.groups:
            risks.append(total[name] / count[name] if count[name] else mean)
        return np.array(risks)


def _sizes(names: list[str]) -> list[int]:
    """Return the number of samples of each group, by name."""
    return [names.count(name) for name in sorted(set(names))]


def weighted(weights: Tensor) -> Loss:
    """Return the loss r_k(theta; w): each training sample counts with its weight.

    Args:
        weights: One weight per training sample.
    """
    if bool((weights == 1).all()):
        return supervised

    def loss(outputs: Outputs, batch: Batch) -> Tensor:
        own = weights[batch.indices].to(outputs.logits)
        total = outputs.logits.sum() * 0
        for weight in sorted(set(own.tolist())):
            chosen = own == weight
            value = batch.supervise(outputs.logits[chosen], batch.y[chosen])
            total = total + weight * (chosen.sum() / len(own)) * value
        return total

    return term(loss)
