"""Variants of Poise that the study tries: folded validation data, liars, a hard choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from equipoise.client import Client
from equipoise.methods.poise import Poise
from equipoise.records import Down, Up
from equipoise.weighting import mixture_weights, simplex_grid

LYING = ("0", "1")
ORDER = ("alone", "global", "offsets", "tuned")


@dataclass(frozen=True)
class Folded(Poise):
    """Offsets and fine-tuning see the validation data, but the model trained alone does not."""

    def prepare(self, client: Client, down: Down) -> Up:
        """Train the experts and drop the model trained alone on all data."""
        up = super().prepare(client, down)
        client.state.pop("alone", None)
        return up


@dataclass(frozen=True)
class Noting(Poise):
    """Poise that stores the likelihoods of the experts."""

    def settle(self, client: Client, down: Down) -> Up:
        """Store the likelihoods and compute the weights."""
        client.state["noted"] = client.state["_chances"]
        return super().settle(client, down)


@dataclass(frozen=True)
class Given(Poise):
    """Poise with likelihoods and prior from a file of arrays by client."""

    noted: str = ""

    def settle(self, client: Client, down: Down) -> Up:
        """Compute the weights from the file."""
        client.state.pop("_chances", None)
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

    def settle(self, client: Client, down: Down) -> Up:
        """Give all weight to the best expert."""
        logs = np.log(np.asarray(client.state.pop("_chances"))).sum(0)
        best = int(logs.argmax()) if len(client.validation) else ORDER.index("global")
        client.state["weights"] = torch.eye(len(logs), dtype=torch.float64)[best]
        return Up()


@dataclass(frozen=True)
class Lying(Poise):
    """Poise with two clients that step the other way and claim the global model is the best expert."""

    def client(self, client: Client, down: Down) -> Up | None:
        """Train, and reverse the step of a lying client."""
        up = super().client(client, down)
        assert up is not None
        if client.id not in LYING:
            return up
        return Up(model=(down.model + -1 * (up.model - down.model)).with_rest(up.model.rest))

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
