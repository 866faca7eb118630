"""FedGKD (Yao et al., 2024).

Dezhong Yao, Wanning Pan, Yutong Dai, Yao Wan, Xiaofeng Ding, Chen Yu, Hai Jin, Zheng Xu and Lichao
Sun. FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation. IEEE
Transactions on Computers 73(1), pages 3-17, 2024. https://arxiv.org/abs/2107.00051,
https://github.com/CGCL-codes/FedGKD
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
    """Distil the mean of the last global models into every client while it trains.

    The teacher is the mean of as many models as there are so far: in round 1 it is the initial
    model, from which every client starts.

    Attributes:
        gamma: Twice the weight of the distillation, gamma in the paper; 0 is FedAvg.
        buffer: Number of global models in the teacher, M in the paper. With 1 the received model
            is the teacher.
        temperature: Temperature tau of the distillation.
    """

    paper = (
        "Yao et al., FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge "
        "Distillation, IEEE Transactions on Computers 2024"
    )
    family = "distillation"
    year = 2024
    fairness = "none"
    passes = "E·T + F"
    needs = ("labels",)
    composable_update: ClassVar[bool] = True

    gamma: NonNegative = 0.2
    buffer: Count = 5
    temperature: Positive = 1.0

    def start(self, server: Server) -> State:
        """Return the initial model with an empty list of earlier ones."""
        return super().start(server).with_(past=[])

    def deliver(self, server: Server, state: State, client_id: str) -> Down:
        """Send the model and its teacher; a model that is its own teacher is sent once."""
        down = Down(model=state.model)
        if not state.past:
            return down
        return down.with_(teacher=state.teacher)

    def client(self, client: Client, down: Down) -> Up:
        """Minimise cross-entropy + gamma / 2 tau^2 KL(teacher || student)."""
        model = client.load(down.model)
        loss = supervised
        if self.gamma:
            teacher = client.teacher(client.load(down.get("teacher", down.model)))
            loss += self.gamma / 2 * distillation(teacher, self.temperature)
        client.fit(model, loss)
        return Up(model=model)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Average the models, and the last M global models into the next teacher."""
        past = [state.model, *state.past][: self.buffer - 1]  # newest first
        state = super().update(server, state, ups, weights).with_(past=past)
        if not past:
            return state
        models = [state.model, *past]
        teacher = combine(models, [1.0] * len(models), len(models))
        return state.with_(teacher=teacher)
