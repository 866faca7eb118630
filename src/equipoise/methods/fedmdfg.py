"""FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance.

Zibin Pan, Shuyi Wang, Chi Li, Haijin Wang, Xiaoying Tang and Junhua Zhao. AAAI Conference on Artificial Intelligence 2023, pages
9364-9371. https://doi.org/10.1609/aaai.v37i8.26122
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from equipoise.client import Client
from equipoise.method import Cohort, Method, Ups
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree, combine
from equipoise.weighting.guidance import STILL, Direction, descent, evenness

HUGE = 1e30  # stands for a trial loss that is not finite: a reply has to be
ARMIJO = 1e-4  # share of the expected descent that a step has to reach


@dataclass(frozen=True)
class FedMDFG(Method):
    """Clients send a gradient, the server finds a direction that descends for all and towards equal losses, and all agree on a step.

    There is no local training: one gradient over all of a client's data, then trials of shorter and shorter steps until every loss falls.
    """

    paper = "Pan et al., FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance, AAAI 2023, Algorithm 1"
    family, year, fairness, passes = (
        "aggregation",
        2023,
        "even accuracy",
        "T + at most (2s + 1 + ⌈log₂ scale⌉)·F",
    )
    exchanges = "2 to 2s + 2 + ⌈log₂ scale⌉"
    trains: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    uploads_model: ClassVar[bool] = False

    # degrees between the losses and equal ones that are tolerated; 11.25 in the original
    theta: Annotated[float, Ge(0), Le(90)] = 1.0
    # rates are tried from 2^s times the learning rate down to 2^-s times it
    s: Annotated[int, Ge(0), Le(30)] = 5
    # released: the authors' tests of a step, which let losses grow a little
    armijo: Literal["correct", "released"] = "correct"

    def start(self, server: Server) -> State:
        return super().start(server).with_(expected=PerClient(), gradients=PerClient(), last=[])

    def client(self, client: Client, down: Down) -> Up:
        loss, gradient = _measured(client, client.load(down.model), True)
        client.state["_model"] = down.model
        return Up(loss=loss, gradient=gradient)

    def trial(self, client: Client, down: Down) -> Up:
        """The loss after a step; the direction comes with the first one alone."""
        if "direction" in down:
            client.state["_direction"] = down.direction
        loss, _ = _measured(
            client,
            client.load(client.state["_model"] + -down.rate * client.state["_direction"]),
            False,
        )
        return Up(loss=min(loss, HUGE) if math.isfinite(loss) else HUGE)

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        ups = cohort.run(self.client, each=lambda client: self.deliver(server, state, client))
        state, force = self._expected(state, ups)
        # asked last round, and not now
        history = [client for client in state.last if client not in ups.ids]
        trees = [*ups.values("gradient"), *(state.gradients[client] for client in history)]
        products = ups.gram("gradient", trees[len(ups) :])
        lengths, losses = np.sqrt(np.diag(products))[: len(ups)], ups.numbers("loss")
        live = np.flatnonzero(lengths > STILL)
        if not len(live):
            return state
        mean = lengths[live].mean()
        kept = {ups.ids[i]: (mean / lengths[i]) * ups[i].gradient for i in live}
        state = state.with_(gradients=state.gradients.put(kept), last=sorted(kept))
        found = descent(products, lengths, live, losses, math.radians(self.theta), force)
        if found is None:
            return state
        step = combine(trees, found.shares.tolist())
        # <g_i, d>, of gradients as they are; above 0 but for rounding
        slopes = (products @ found.shares)[live]
        slopes = -slopes * mean / lengths[live] if self.armijo == "released" else slopes.clip(min=0)

        def tried(rate: float, first: bool) -> np.ndarray:
            down = Down(rate=rate, direction=step) if first else Down(rate=rate)
            return cohort.run(self.trial, down, strict=True).numbers("loss")[live]

        rate = self._searched(server.lr, not history, found, losses[live], slopes, tried)
        return state.with_(model=state.model + -rate * step)

    def _expected(self, state: State, ups: Ups) -> tuple[State, bool]:
        """What losses each client is used to, and whether some but not all clients are worse off now."""
        seen, worse = {}, 0
        for client, loss in ups.table("loss").items():
            usual, joins = state.expected.get(client, [loss, 0])
            worse += loss > usual
            seen[client] = [
                usual if loss > usual else (usual * joins + loss) / (joins + 1),
                joins + 1,
            ]
        return state.with_(expected=state.expected.put(seen)), 0 < worse < len(ups)

    def _searched(
        self,
        lr: float,
        same: bool,
        found: Direction,
        before: np.ndarray,
        slopes: np.ndarray,
        tried: Callable[[float, bool], np.ndarray],
    ) -> float:
        """The first rate, halved from trial to trial, with which every loss falls enough, and losses get more equal where that is wanted."""
        rate, least = lr * 2.0**self.s if same else lr, lr * 0.5**self.s / found.scale
        # released: by the sum of losses, not their norm
        fairness = len(before) ** -0.5 if self.armijo == "released" else evenness(before)
        totals: dict[float, float] = {}
        while rate >= least:
            losses = tried(rate, not totals)
            totals[rate] = float(losses.sum())
            fairer = not found.guided or evenness(losses) > fairness
            if (before - losses >= rate * ARMIJO * slopes).all() and fairer:
                return rate
            rate /= 2
        best = min(totals, key=lambda rate: totals[rate])
        return next(
            (rate for rate, total in totals.items() if total < before.sum()),
            best if totals[best] < HUGE else 0.0,
        )


def _measured(client: Client, model: Model, gradient: bool) -> tuple[float, Tree]:
    """The loss over the training data in evaluation mode and, if asked, its gradient, from one pass over the same batches."""
    model.net.eval()
    loss, sums = (
        0.0,
        {name: torch.zeros_like(parameter) for name, parameter in model.trained.items()},
    )
    with torch.set_grad_enabled(gradient):
        for batch in client.batches() if len(client.train) else ():
            value, share = (
                batch.supervise(model(batch.x).logits, batch.y),
                len(batch.y) / len(client.train),
            )
            loss += share * float(value.detach())
            if gradient:
                found = torch.autograd.grad(value, list(model.trained.values()), allow_unused=True)
                for total, one in zip(sums.values(), found, strict=True):
                    total += 0 if one is None else share * one
    return loss, Tree({name: total.cpu() for name, total in sums.items()}, model.name)
