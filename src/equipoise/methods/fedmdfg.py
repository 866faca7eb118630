"""FedMDFG (Pan et al., 2023).

Zibin Pan, Shuyi Wang, Chi Li, Haijin Wang, Xiaoying Tang and Junhua Zhao. FedMDFG: Federated
Learning with Multi-Gradient Descent and Fair Guidance. AAAI Conference on Artificial Intelligence
2023, pages 9364-9371. https://doi.org/10.1609/aaai.v37i8.26122
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Le

from equipoise.client import Client
from equipoise.losses.terms import Batch
from equipoise.method import Cohort, Method, Ups
from equipoise.models import Model
from equipoise.records import Down, PerClient, State, Up
from equipoise.server import Server
from equipoise.tree import Tree, combine
from equipoise.weighting.guidance import STILL, Direction, descent, evenness

HUGE = 1e30  # Stands for a trial loss that is not finite, because replies have to be finite.
ARMIJO = 1e-4  # Share of the expected descent that a step has to reach.


@dataclass(frozen=True)
class FedMDFG(Method):
    """Find a direction that descends for all clients and towards equal losses, then a step size.

    There is no local training. Clients send one gradient over all their data, then losses for
    shorter and shorter steps until every loss falls.

    Attributes:
        theta: Tolerated angle theta in degrees between the losses and equal losses. Default from
            the comparison in CoRe-Fed; 11.25 in the original.
        s: Learning rates are tried from 2^s times the experiment's down to 2^-s times it; s in
            the paper.
        armijo: "released" uses the line-search tests of the authors' code, which let losses grow
            a little.
    """

    paper = (
        "Pan et al., FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance, "
        "AAAI 2023, Algorithm 1"
    )
    family = "aggregation"
    year = 2023
    fairness = "even accuracy"
    passes = "T + at most (2s + 1 + ⌈log₂ scale⌉)·F"
    exchanges = "2 to 2s + 2 + ⌈log₂ scale⌉"
    trains: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    uploads_model: ClassVar[bool] = False

    theta: Annotated[float, Ge(0), Le(90)] = 1.0
    s: Annotated[int, Ge(0), Le(30)] = 5
    armijo: Literal["correct", "released"] = "correct"

    def start(self, server: Server) -> State:
        """Return the initial model without usual losses and gradients of clients."""
        return super().start(server).with_(expected=PerClient(), gradients=PerClient(), last=[])

    def client(self, client: Client, down: Down) -> Up:
        """Report loss and gradient of the received model."""
        loss, gradient = _loss_and_gradient(client, client.load(down.model))
        client.state["_model"] = down.model
        return Up(loss=loss, gradient=gradient)

    def local_model(self, server: Server, down: Down, up: Up) -> Tree | None:
        """Return the received model after one step along the client's own gradient.

        Clients of FedMDFG have no model of their own. This is where their data alone would lead,
        with the learning rate of the round.
        """
        if "gradient" not in up:
            return None
        stepped: Tree = down.model + -server.lr * up.gradient
        return stepped

    def trial(self, client: Client, down: Down) -> Up:
        """Report the loss after a step; only the first trial of a round sends the direction."""
        if "direction" in down:
            client.state["_direction"] = down.direction
        moved = client.state["_model"] + -down.rate * client.state["_direction"]
        loss = _loss(client, client.load(moved))
        return Up(loss=min(loss, HUGE) if math.isfinite(loss) else HUGE)

    def round(self, server: Server, state: State, cohort: Cohort) -> State:
        """Collect gradients, find the common direction, and search the step size."""
        ups = cohort.run(self.client, each=lambda client: self.deliver(server, state, client))
        state, force = self.with_usual_losses(state, ups)
        # Gradients of the last round's clients that are absent now take part, too.
        history = [client for client in state.last if client not in ups.ids]
        earlier = [state.gradients[client] for client in history]
        products = ups.gram("gradient", earlier)
        lengths = np.sqrt(np.diag(products))[: len(ups)]
        losses = ups.numbers("loss")
        live = np.flatnonzero(lengths > STILL)
        if not len(live):
            return state
        mean = lengths[live].mean()
        scaled = {ups.ids[i]: (mean / lengths[i]) * ups[i].gradient for i in live}
        state = state.with_(gradients=state.gradients.put(scaled), last=sorted(scaled))
        direction = descent(products, lengths, live, losses, math.radians(self.theta), force)
        if direction is None:
            return state
        step = combine([*ups.values("gradient"), *earlier], direction.shares.tolist())
        slopes = (products @ direction.shares)[live]  # <g_i, d>: above 0 except for rounding
        released_slopes = -slopes * mean / lengths[live]
        slopes = released_slopes if self.armijo == "released" else slopes.clip(min=0)

        def losses_after(rate: float, first: bool) -> np.ndarray:
            down = Down(rate=rate, direction=step) if first else Down(rate=rate)
            return cohort.run(self.trial, down, strict=True).numbers("loss")[live]

        rate = self.search_rate(
            server.lr, not history, direction, losses[live], slopes, losses_after
        )
        return state.with_(model=state.model + -rate * step)

    def with_usual_losses(self, state: State, ups: Ups) -> tuple[State, bool]:
        """Renew the loss that each client usually has.

        Returns:
            The new state, and True if the loss of some but not all clients is worse than usual.
        """
        expected = {}
        worse = 0
        for client, loss in ups.table("loss").items():
            usual, joins = state.expected.get(client, [loss, 0])
            if loss > usual:
                worse += 1
            else:
                usual = (usual * joins + loss) / (joins + 1)
            expected[client] = [usual, joins + 1]
        return state.with_(expected=state.expected.put(expected)), 0 < worse < len(ups)

    def search_rate(
        self,
        lr: float,
        same_cohort: bool,
        direction: Direction,
        before: np.ndarray,
        slopes: np.ndarray,
        losses_after: Callable[[float, bool], np.ndarray],
    ) -> float:
        """Return the first rate, halved from trial to trial, with which every loss falls enough.

        If no rate does, the first one that lowers the sum of losses is returned, or else the one
        with the smallest sum; 0 if no sum is finite.

        Args:
            lr: The learning rate of the experiment.
            same_cohort: True if all clients of the last round take part; larger rates than `lr`
                are tried only then.
            direction: The direction; if it is guided, losses must also become more equal.
            before: The losses before the step.
            slopes: The expected descent of each loss per unit of the rate.
            losses_after: A function of a rate, and True for the first trial, that returns the
                losses after a step with it.
        """
        # The authors' code compares the sum of losses, not their norm.
        fairness = len(before) ** -0.5 if self.armijo == "released" else evenness(before)
        totals: dict[float, float] = {}
        rate = lr * 2.0**self.s if same_cohort else lr
        smallest = lr * 0.5**self.s / direction.scale
        while rate >= smallest:
            losses = losses_after(rate, not totals)
            totals[rate] = float(losses.sum())
            descends = (before - losses >= rate * ARMIJO * slopes).all()
            fairer = not direction.guided or evenness(losses) > fairness
            if descends and fairer:
                return rate
            rate /= 2
        for rate, total in totals.items():
            if total < before.sum():
                return rate
        best = min(totals, key=lambda rate: totals[rate])
        return best if totals[best] < HUGE else 0.0


def _loss(client: Client, model: Model) -> float:
    """Return the loss over the training data in evaluation mode, from the batches of training."""
    model.net.eval()
    loss = 0.0
    with torch.no_grad():
        for batch, share in _weighted_batches(client):
            loss += share * float(batch.supervise(model(batch.x).logits, batch.y))
    return loss


def _loss_and_gradient(client: Client, model: Model) -> tuple[float, Tree]:
    """Return the loss as `_loss` does, and its gradient from the same pass."""
    model.net.eval()
    loss = 0.0
    parameters = model.trained
    sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for batch, share in _weighted_batches(client):
        value = batch.supervise(model(batch.x).logits, batch.y)
        loss += share * float(value.detach())
        gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        for total, gradient in zip(sums.values(), gradients, strict=True):
            if gradient is not None:
                total += share * gradient
    return loss, Tree({name: total.cpu() for name, total in sums.items()}, model.name)


def _weighted_batches(client: Client) -> Iterator[tuple[Batch, float]]:
    """Yield the training data in batches, each with its share of all samples."""
    samples = len(client.train)
    if samples:
        for batch in client.batches():
            yield batch, len(batch.y) / samples
