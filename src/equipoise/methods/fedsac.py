"""FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning.

Zihui Wang, Zheng Wang, Lingjuan Lyu, Zhaopeng Peng, Zhicheng Yang, Chenglu Wen, Rongshan Yu, Cheng Wang and Xiaoliang Fan. Proceedings of the
30th ACM SIGKDD Conference on Knowledge Discovery and Data Mining (KDD), 2024. https://arxiv.org/abs/2405.18291

A reconstruction: its repository holds no code, so what is here follows a summary of the paper and a port by others.
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

ALL = 100.0  # the sum of all importance, and the reputation that buys it
TO_SPARE = 1e-9  # sums of importance are rounded


@dataclass(frozen=True)
class FedSAC(Method):
    """Each client downloads and trains a submodel: as many hidden units as its reputation buys at the price of their importance.

    Reputation grows with the accuracy that a client reaches alone, before round 1, on the server's validation data; a unit's importance is
    what the loss there gains when it is left out. A unit is averaged over the clients that have it.
    """

    paper = "Wang et al., FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning, KDD 2024"
    family, year, fairness, passes = (
        "rewards",
        2024,
        "collaborative",
        "E·T, and (units + 1)·V every 10 rounds; once rounds·E·T + K·V",
    )
    reconstruction: ClassVar[bool] = True
    needs = ("classes", "units", "validation")
    exchanges = "1; once 1"

    beta: NonNegative = 2.0  # how much more the accurate get; 0: everybody gets the whole model
    # which units are bought first: the least important, or the most
    order: Literal["ascending", "descending"] = "ascending"
    every: Count = 10  # rounds from one measurement of importance to the next
    # epochs that each client trains alone before round 1; none: as many as in all rounds
    alone: Count | None = None
    # submodels in this round alone, as in a comparison's code; 0: in every round
    mid_round: Annotated[int, Ge(0)] = 0

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        def with_hidden_units() -> nn.Module:
            net = others["model"]()
            if not hidden_units(net):
                raise ValueError(
                    "FedSAC deals out hidden units, and the model has no linear or convolutional layer before its last; choose another, 'mlp' say"
                )
            return net

        return {"model": with_hidden_units} if "model" in others else {}

    def start(self, server: Server) -> State:
        model = server.load(None)
        units = hidden_units(model.net)
        total = sum(unit_counts(units, model.tree()))
        return State(
            model=model,
            units=units,
            importance=torch.full((total,), ALL / total, dtype=torch.float64),
            reputation=PerClient(),
        )

    def setup(self, server: Server, state: State, everyone: Cohort) -> State:
        model, ups = server.load(None), everyone.run(self.train_alone)
        # c_i, in [0, 1]
        accuracies = np.array([server.accuracy(model.put(up.model)) for up in ups])
        # 100 exp(beta c_i) / max_j exp(beta c_j)
        reputation = ALL * np.exp(self.beta * (accuracies - accuracies.max()))
        return state.with_(
            reputation=state.reputation.put(dict(zip(ups.ids, reputation.tolist(), strict=True)))
        )

    def train_alone(self, client: Client, down: Down) -> Up:
        """Once, before round 1: what the client can do without the others."""
        model, steps = client.load(None), client.training.steps
        if self.alone is None and steps:
            client.fit(model, purpose="alone", steps=client.rounds * steps)
        else:
            client.fit(
                model, purpose="alone", epochs=self.alone or client.rounds * client.training.epochs
            )
        return Up(model=model)

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        if server.round == self.mid_round or (
            not self.mid_round and (server.round - 1) % self.every == 0
        ):
            state = state.with_(importance=self._importance(server, state))
        return super().round(server, state, cohort)

    def _importance(self, server: Server, state: State) -> Tensor:
        """What the validation loss gains when a unit is left out, scaled to the sum 100; units that do harm count 0."""
        model = server.load(state.model)
        whole, without = server.loss(model), []
        for unit in range(len(state.importance)):
            kept = torch.ones(len(state.importance))
            kept[unit] = 0
            without.append(server.loss(model.put(with_units(state.model, state.units, kept))))
        gains = np.nan_to_num(np.clip(np.array(without) - whole, 0, None), nan=0, posinf=0)
        return torch.from_numpy(
            ALL * (gains / gains.sum() if gains.any() else np.full(len(gains), 1 / len(gains)))
        )

    def _kept(self, server: Server, state: State, client: str) -> Tensor:
        """Which units a client's reputation buys: the longest run of them in order, and at least the first of each layer."""
        if self.mid_round not in (0, server.round):
            return torch.ones(len(state.importance), dtype=torch.bool)
        price = state.importance if self.order == "ascending" else -state.importance
        order = torch.argsort(price, stable=True)
        kept = torch.zeros(len(order), dtype=torch.bool)
        kept[order] = state.importance[order].cumsum(0) <= state.reputation[client] + TO_SPARE
        place = torch.argsort(order)  # of each unit in the order
        start = 0
        for count in unit_counts(state.units, state.model):
            kept[start + int(place[start : start + count].argmin())] = True
            start += count
        return kept

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        kept = self._kept(server, state, client_id)
        return Down(
            model=with_units(state.model, state.units, kept),
            kept=unit_rows(state.units, state.model, kept),
        )

    def client(self, client: Client, down: Down) -> Up:
        model = client.load(down.model)
        rows = {name: kept.to(client.device) for name, kept in down.kept.items()}
        # what is 0 stays 0
        client.fit(model, gradient=lambda name, g: g * rows[name] if name in rows else g)
        return Up(model=model)

    def weights(self, server: Server, state: State, ups: Ups) -> Weights:
        return Weights(np.ones(len(ups)))

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Each row is averaged over the clients that have it, and stays where nobody does. Rows that a client lacks are 0 in its model."""
        mean, total = ups.mean("model", weights.shares), ups.sum("model", weights.shares)
        holders = torch.stack([self._kept(server, state, client) for client in ups.ids]).sum(0)
        merged = dict(mean)
        for name, count in unit_rows(state.units, mean, holders).items():
            held = torch.where(count == len(ups), mean[name], total[name] / count.clamp(min=1))
            merged[name] = torch.where(count > 0, held, state.model[name])
        return state.with_(model=Tree(merged, mean.model, mean.untrained))

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        return {"submodel": Served(client.load(down.model), main=True)}
