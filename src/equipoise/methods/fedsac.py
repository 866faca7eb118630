"""FedSAC (Wang et al., 2024).

Zihui Wang, Zheng Wang, Lingjuan Lyu, Zhaopeng Peng, Zhicheng Yang, Chenglu Wen, Rongshan Yu, Cheng
Wang and Xiaoliang Fan. FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated
Learning. Proceedings of the 30th ACM SIGKDD Conference on Knowledge Discovery and Data Mining
(KDD), 2024. https://arxiv.org/abs/2405.18291

A reconstruction: its repository holds no code, so this follows a summary of the paper and a port by
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from equipoise.client import Client
from equipoise.method import Cohort, Count, Method, NonNegative, Served, Ups, Weights
from equipoise.models import Model
from equipoise.models.units import hidden_units, unit_counts, unit_rows, with_units
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.task import Task
from equipoise.tree import Tree

TOTAL = 100.0  # The sum of all importance, and the reputation that buys the whole model.
TOLERANCE = 1e-9  # Sums of importance are rounded.


@dataclass(frozen=True)
class FedSAC(Method):
    """Each client trains a submodel: as many hidden units as its reputation buys.

    Reputation grows with the accuracy that a client reaches alone, before round 1, on the server's
    validation data. The price of a unit is its importance: the increase of the validation loss
    when the unit is left out. A unit is averaged over the clients that have it.

    Attributes:
        beta: Slope beta of the reputation; 0 gives every client the whole model.
        order: Order in which units are bought: the least important first, or the most important.
        every: Rounds from one measurement of importance to the next.
        alone: Epochs that each client trains alone before round 1; None takes as many as in all
            rounds.
        mid_round: Use submodels in this round only, as the code of the comparison in FedAKD does;
            0 uses them in every round.
    """

    paper = (
        "Wang et al., FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated "
        "Learning, KDD 2024"
    )
    family = "rewards"
    year = 2024
    fairness = "collaborative"
    passes = "E·T, and (units + 1)·V every 10 rounds; once rounds·E·T + K·V"
    served_models = ("submodel",)
    reconstruction: ClassVar[bool] = True
    needs = ("classes", "units", "validation")
    exchanges = "1; once 1"

    beta: NonNegative = 2.0
    order: Literal["ascending", "descending"] = "ascending"
    every: Count = 10
    alone: Count | None = None
    mid_round: Annotated[int, Ge(0)] = 0

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return the experiment's model, checked for hidden units."""
        if "model" not in others:
            return {}

        def with_hidden_units() -> nn.Module:
            net = others["model"]()
            if not hidden_units(net):
                raise ValueError(
                    "FedSAC allocates hidden units, and the model has no linear or convolutional "
                    "layer before its last; choose another model, such as 'mlp'"
                )
            return net

        return {"model": with_hidden_units}

    def start(self, server: Server) -> State:
        """Return the initial model with equal importance of all units."""
        model = server.load(None)
        units = hidden_units(model.net)
        count = sum(unit_counts(units, model.tree()))
        importance = torch.full((count,), TOTAL / count, dtype=torch.float64)
        return State(model=model, units=units, importance=importance, reputation=PerClient())

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        """Compute reputations 100 exp(beta c_i) / max_j exp(beta c_j) from accuracies c_i."""
        model = server.load(None)
        ups = everyone.run(self.train_alone)
        accuracies = np.array([server.accuracy(model.put(up.model)) for up in ups])
        reputation = TOTAL * np.exp(self.beta * (accuracies - accuracies.max()))
        stored = dict(zip(ups.ids, reputation.tolist(), strict=True))
        return state.with_(reputation=state.reputation.put(stored))

    def train_alone(self, client: Client, down: Down) -> Up:
        """Train a model on the client's data alone, once before round 1."""
        model = client.load(None)
        training = client.training
        if self.alone is None and training.steps:
            client.fit(model, purpose="alone", steps=client.rounds * training.steps)
        else:
            epochs = self.alone or client.rounds * training.epochs
            client.fit(model, purpose="alone", epochs=epochs)
        return Up(model=model)

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Do one round, after measuring importance if it is due."""
        if self._measures_importance(server.round):
            state = state.with_(importance=self.importance(server, state))
        reputation = {
            client: state.reputation[client] for client in server.ids if client in state.reputation
        }
        server.log_contributions("reputation", reputation)
        return super().round(server, state, cohort)

    def _measures_importance(self, round: int) -> bool:
        if self.mid_round:
            return round == self.mid_round
        return (round - 1) % self.every == 0

    def importance(self, server: Server, state: State) -> Tensor:
        """Return the increase of the validation loss without each unit, scaled to the sum 100.

        Units whose absence lowers the loss count 0.
        """
        model = server.load(state.model)
        units = len(state.importance)
        whole = server.loss(model)
        without = []
        for unit in range(units):
            mask = torch.ones(units)
            mask[unit] = 0
            without.append(server.loss(model.put(with_units(state.model, state.units, mask))))
        gains = np.nan_to_num(np.clip(np.array(without) - whole, 0, None), nan=0, posinf=0)
        shares = gains / gains.sum() if gains.any() else np.full(units, 1 / units)
        return torch.from_numpy(TOTAL * shares)

    def bought_units(self, server: Server, state: State, client: str) -> Tensor:
        """Return a mask of the units that a client's reputation buys.

        Units are bought in order as long as the sum of their prices allows, and at least the first
        of each layer.
        """
        if self.mid_round not in (0, server.round):
            return torch.ones(len(state.importance), dtype=torch.bool)
        price = state.importance if self.order == "ascending" else -state.importance
        order = torch.argsort(price, stable=True)
        bought = torch.zeros(len(order), dtype=torch.bool)
        bought[order] = state.importance[order].cumsum(0) <= state.reputation[client] + TOLERANCE
        rank = torch.argsort(order)  # of each unit in the order
        start = 0
        for count in unit_counts(state.units, state.model):
            first = start + int(rank[start : start + count].argmin())
            bought[first] = True
            start += count
        return bought

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the submodel: rows of units that are not bought are 0."""
        bought = self.bought_units(server, state, client_id)
        return Down(
            model=with_units(state.model, state.units, bought),
            kept=unit_rows(state.units, state.model, bought),
        )

    def client(self, client: Client, down: Down) -> Up:
        """Train the submodel; rows that are 0 stay 0."""
        model = client.load(down.model)
        rows = {name: mask.to(client.device) for name, mask in down.kept.items()}
        client.fit(model, gradient=lambda name, g: g * rows[name] if name in rows else g)
        return Up(model=model)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        """Return equal weights."""
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Average each row over the clients that have it; a row that no client has stays."""
        mean = ups.mean("model", weights.shares)
        total = ups.sum("model", weights.shares)
        bought = [self.bought_units(server, state, client) for client in ups.ids]
        owners = torch.stack(bought).sum(0)
        merged = dict(mean)
        for name, count in unit_rows(state.units, mean, owners).items():
            # Rows that a client lacks are 0 in its model, so the sum is that of the owners.
            owned = torch.where(count == len(ups), mean[name], total[name] / count.clamp(min=1))
            merged[name] = torch.where(count > 0, owned, state.model[name])
        return state.with_(model=Tree(merged, mean.model, mean.untrained))

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the client's submodel."""
        return {"submodel": Served(client.load(down.model), main=True)}
