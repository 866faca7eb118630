"""Variants of Poise: of its first form in the first study, and of its second in development."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from equipoise.client import Client
from equipoise.method import Method, Ups, Weights
from equipoise.methods.finetune import Finetune
from equipoise.methods.poise import Poise
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import RunningMean
from equipoise.weighting import mixture_weights, simplex_grid

LYING = ("0", "1")
ORDER = ("alone", "global", "offsets", "tuned")


def reversed_step(up: Up, down: Down) -> Up:
    """Return a reply whose model is as far from the received one, on the other side."""
    return Up(model=(down.model + -1 * (up.model - down.model)).with_rest(up.model.rest))


@dataclass(frozen=True)
class Folded(Poise):
    """Offsets and fine-tuning see the validation data, but the model trained alone does not."""

    variant: Literal["two", "one"] = "one"

    def prepare(self, client: Client, down: Down) -> Up:
        """Train the experts and drop the model trained alone on all data."""
        up = super().prepare(client, down)
        client.state.pop("alone", None)
        return up


@dataclass(frozen=True)
class Noting(Poise):
    """Poise that stores the likelihoods of the experts."""

    variant: Literal["two", "one"] = "one"

    def settle(self, client: Client, down: Down) -> Up:
        """Store the likelihoods and compute the weights."""
        client.state["noted"] = client.state["likelihoods"]
        return super().settle(client, down)


@dataclass(frozen=True)
class Given(Poise):
    """Poise with likelihoods and prior from a file of arrays by client."""

    variant: Literal["two", "one"] = "one"

    noted: str = ""

    def settle(self, client: Client, down: Down) -> Up:
        """Compute the weights from the file."""
        client.state.pop("likelihoods", None)
        with np.load(self.noted) as arrays:
            client.state["weights"] = torch.from_numpy(
                mixture_weights(arrays[client.id], arrays["prior"], self.kappa)
            )
        return Up()


@dataclass(frozen=True)
class Hard(Poise):
    """Poise that serves the expert with the highest likelihood.

    Without validation data it is the global model.
    """

    variant: Literal["two", "one"] = "one"

    def settle(self, client: Client, down: Down) -> Up:
        """Give all weight to the best expert."""
        logs = np.log(np.asarray(client.state.pop("likelihoods"))).sum(0)
        best = int(logs.argmax()) if len(client.validation) else ORDER.index("global")
        client.state["weights"] = torch.eye(len(logs), dtype=torch.float64)[best]
        return Up()


@dataclass(frozen=True)
class Lying(Poise):
    """Poise with two clients that step the other way and claim the global model is the best expert.

    Attributes:
        flip_after: The round after which they step the other way.
    """

    variant: Literal["two", "one"] = "one"
    flip_after: int = 0

    def client(self, client: Client, down: Down) -> Up | None:
        """Train, and reverse the step of a lying client."""
        up = super().client(client, down)
        assert up is not None
        flips = client.id in LYING and client.round > self.flip_after
        return reversed_step(up, down) if flips else up

    def prepare(self, client: Client, down: Down) -> Up:
        """Train the experts, and report false evidence at a lying client."""
        up = super().prepare(client, down)
        if client.id not in LYING:
            return up
        grid = simplex_grid(len(ORDER))
        best = int(grid[:, ORDER.index("global")].argmax())
        said = (
            np.where(np.arange(len(grid)) == best, 0.0, -1e6)
            if self.prior == "pooled"
            else grid[best]
        )
        return Up(evidence=torch.from_numpy(said))


# Robustness of the second form.


@dataclass(frozen=True)
class LyingFinetune(Finetune):
    """Fine-tuning with the same two clients that step the other way."""

    def client(self, client: Client, down: Down) -> Up:
        """Train, and reverse the step of a lying client."""
        up = super().client(client, down)
        return reversed_step(up, down) if client.id in LYING else up


@dataclass(frozen=True)
class Diverging(Poise):
    """Poise whose global model is multiplied by 100 in the last round."""

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Return the mean, and in the last round one that is far off."""
        state = super().update(server, state, ups, weights)
        if server.round < server.rounds:
            return state
        return state.with_(model=(100.0 * state.model).with_rest(state.model.rest))


# Development of the second form.


@dataclass(frozen=True)
class WithoutGlobal(Poise):
    """The second form without the global model as an expert; its offsets and tuned form stay."""

    def experts(self, client: Client, down: Down) -> tuple[dict[str, nn.Module], dict[str, str]]:
        """Return the experts but for the global model."""
        nets, experts = super().experts(client, down)
        del experts["global"]
        return nets, experts


@dataclass(frozen=True)
class SeveralLengths(Poise):
    """The second form with two more experts from the path of tuning: at a quarter and at half."""

    def make_experts(self, client: Client, shared: Model, start: Model) -> None:
        """Tune once, and keep models of the path next to the mean of its second half."""
        Poise.make_experts(replace(self, tune_epochs=0), client, shared, start)
        epochs = self.tuning_epochs(client)
        quarter, half = max(1, epochs // 4), max(1, epochs // 2)
        model = client.load(start.tree())
        mean = RunningMean()

        def keep(epoch: int) -> None:
            if epoch == quarter:
                client.state["at_quarter"] = model
            if epoch == half:
                client.state["at_half"] = model
            if epoch > epochs // 2:
                mean.add(model.tree())

        client.fit(model, epochs=epochs, purpose="tune", after_epoch=keep)
        client.state["tuned"] = mean.tree()

    def experts(self, client: Client, down: Down) -> tuple[dict[str, nn.Module], dict[str, str]]:
        """Return the experts and the two models of the path."""
        nets, experts = super().experts(client, down)
        for name in ("at_quarter", "at_half"):
            nets[name] = client.load(client.state[name]).net
            experts[name] = name
        return nets, experts


@dataclass(frozen=True)
class VariantX(Poise):
    """G trains on all data throughout; clients judge at the end, so the evidence is not clean."""

    hold: float = 1.0

    def client(self, client: Client, down: Down) -> Up | None:
        """Train L_k on training data and G on all data."""
        self.learn_alone(client, down)
        with client.training_on_all():
            return Method.client(self, client, down)
