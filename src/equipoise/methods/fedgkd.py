"""FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation.

Dezhong Yao, Wanning Pan, Yutong Dai, Yao Wan, Xiaofeng Ding, Chen Yu, Hai Jin, Zheng Xu and Lichao Sun. IEEE Transactions on Computers
73(1), pages 3-17, 2024. https://arxiv.org/abs/2107.00051, https://github.com/CGCL-codes/FedGKD
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.client import Client
from equipoise.losses.terms import distillation, supervised
from equipoise.method import Count, Method, NonNegative, Positive, Ups, Weights
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import combine


@dataclass(frozen=True)
class FedGKD(Method):
    """The mean of the last global models teaches every client while it trains.

    The teacher is averaged over as many models as there are: in round 1 it is the initial one, which every client starts from.
    """

    paper = "Yao et al., FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation, IEEE Transactions on Computers 2024"
    family, year, fairness, passes = "distillation", 2024, "none", "E·T + F"
    composable_update: ClassVar[bool] = True

    gamma: NonNegative = 0.2  # twice the weight of the distillation
    # how many global models the teacher is the mean of; 1: the received model teaches
    buffer: Count = 5
    temperature: Positive = 1.0  # of the distillation

    def start(self, server: Server) -> State:
        return super().start(server).with_(past=[])

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        down = Down(model=state.model)
        # alone, the model is its own teacher and is sent once
        return down.with_(teacher=state.teacher) if state.past else down

    def client(self, client: Client, down: Down) -> Up:
        model, loss = client.load(down.model), supervised
        if self.gamma:
            teacher = client.teacher(client.load(down.get("teacher", down.model)))
            # gamma/2 * tau^2 * mean of KL(teacher || student)
            loss += self.gamma / 2 * distillation(teacher, self.temperature)
        client.fit(model, loss)
        return Up(model=model)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        past = [state.model, *state.past][: self.buffer - 1]  # the last first
        state = super().update(server, state, ups, weights).with_(past=past)
        models = [state.model, *past]
        return (
            state.with_(teacher=combine(models, [1.0] * len(models), len(models)))
            if past
            else state
        )
