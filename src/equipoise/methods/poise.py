"""Poise: a mixture of what a client learns alone and what all learn together, as far as its own validation data support each.

A method of this project, 2026. No address but its page, docs/methods/poise.md, which says what is known of it and what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn

from equipoise.client import Client
from equipoise.losses import class_offsets
from equipoise.method import Cohort, Count, Fraction, Method, NonNegative, Positive, Served, Ups
from equipoise.methods.finetune import tuned
from equipoise.methods.standalone import Standalone
from equipoise.models import Model
from equipoise.models.mixture import Mixture
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task
from equipoise.weighting import log_likelihoods, mixture_weights, on_simplex, posterior_mean, simplex_grid

NEVER_ZERO = 1e-12  # added to probabilities, whose logarithms are taken


@dataclass(frozen=True)
class Poise(Method):
    """All train one model by FedAvg, each also one alone; at the end each serves the mixture that its validation data support.

    The experts: the model trained alone (`private` in the experiment, or of the common architecture), the global model, the global model
    with offsets for the client's mix of labels, and the global model fine-tuned. A prior for their weights is agreed on by a few numbers.
    """

    family, year, fairness = "personal", 2026, "no harm"
    passes, exchanges = "2E·T, and at the end e·T + F, and 3 passes over the client's validation data", "1; at the end 2"
    needs_classes: ClassVar[bool] = True

    alone: bool = True  # an expert that is trained as if there were no federation
    offsets: bool = True  # an expert that is the global model with class offsets
    tune_epochs: Annotated[int, Ge(0)] = 5  # of fine-tuning the global model, as another expert; 0: there is none
    rho: Positive = 1.0  # pull of the class offsets to 0
    kappa: NonNegative = 10.0  # strength of the prior, in validation samples
    prior: Literal["mean", "pooled"] = "mean"  # from the means of the clients' posteriors; pooled: from all validation data as one set
    min_validation: Count = 10  # validation samples below which a client says nothing about the prior
    merit: Fraction = 0.0  # share of the weights that goes to the model trained alone, whatever the evidence

    @property
    def experts(self) -> dict[str, str]:  # expert -> the network that it asks
        given = {"alone": self.alone, "global": True, "offsets": self.offsets, "tuned": bool(self.tune_epochs)}
        return {name: "global" if name == "offsets" else name for name, there in given.items() if there}

    def check(self, task: Task) -> None:
        if self.merit and not self.alone:
            raise ValueError(f"poise: merit={self.merit:g} gives weight to the model trained alone, but alone=false; set merit=0")

    def models(self, task: Task, others: Mapping[str, Callable[[], nn.Module]]) -> Mapping[str, Callable[[], nn.Module]]:
        if "model" not in others:
            return {}
        private = others.get("private", others["model"])
        networks = {name: private if name == "alone" else others["model"] for name in dict.fromkeys(self.experts.values())}
        return {"private": private, "mixture": lambda: Mixture(networks, self.experts, task.outputs)}

    def client(self, client: Client, down: Down) -> Up | None:
        if self.alone:
            Standalone("private").client(client, down)  # L_k: nothing passes between it and the global model
        return super().client(client, down)

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        if "prior" in state:  # these came late: the others have agreed without them
            everyone.run(self.settle, Down(model=state.model, prior=state.prior))
            return state
        prior = self._agreed(everyone.run(self.prepare, Down(model=state.model)))
        everyone.run(self.settle, Down(prior=prior))
        return state.with_(prior=prior)

    def prepare(self, client: Client, down: Down) -> Up:
        """Steps 1 and 2: the experts, and what the validation data say of them. Too few of them say nothing: zeros."""
        if self.offsets:
            logits = client.predict(client.load(down.model))
            client.state["offsets"] = torch.from_numpy(class_offsets(logits, client.train.y, self.rho))
        if self.tune_epochs:
            client.state["tuned"] = tuned(client, down, self.tune_epochs)
        client.state["_chances"] = self._chances(client, down)
        grid = simplex_grid(len(self.experts))
        logs = log_likelihoods(client.state["_chances"], grid)
        said = logs if self.prior == "pooled" else posterior_mean(logs, grid)
        return Up(evidence=torch.from_numpy(said if len(client.validation) >= self.min_validation else np.zeros_like(said)))

    def _agreed(self, ups: Ups) -> Tensor:
        """Step 3: the prior. What is no posterior at all does not count; so a client moves the mean by its share at most."""
        grid = simplex_grid(len(self.experts))
        said = [up.evidence.numpy() for up in ups]
        if self.prior == "pooled":
            return torch.from_numpy(posterior_mean(sum((one for one in said if one.shape == grid.shape[:1]), np.zeros(len(grid))), grid))
        counted = [one for one in said if one.shape == grid.shape[1:] and on_simplex(one)]
        return torch.from_numpy(np.mean(counted or [np.full(grid.shape[1], 1 / grid.shape[1])], axis=0))

    def settle(self, client: Client, down: Down) -> Up:
        """Step 4: the weights."""
        if "_chances" not in client.state:
            self.prepare(client, down)
        weights = mixture_weights(client.state.pop("_chances"), down.prior, self.kappa)
        own = np.array([expert == "alone" for expert in self.experts])
        client.state["weights"] = torch.from_numpy((1 - self.merit) * weights + self.merit * own)
        return Up()

    def _networks(self, client: Client, down: Down) -> dict[str, Model]:
        """The networks behind the experts."""
        found = {"global": client.load(down.model)}
        if self.alone:
            found["alone"] = client.load(client.state.get("local"), model="private")
        if "tuned" in client.state:
            found["tuned"] = client.load(client.state["tuned"])
        return found

    def _chances(self, client: Client, down: Down) -> Tensor:
        """q_ij: the probability that expert j gives to the label of validation sample i."""
        samples = client.validation
        logits = {name: client.predict(model, samples).double() for name, model in self._networks(client, down).items()}
        moved = [logits[network] + (client.state["offsets"] if expert == "offsets" else 0) for expert, network in self.experts.items()]
        right = [one.softmax(1).gather(1, samples.y[:, None])[:, 0] for one in moved]
        return torch.stack(right, 1) + NEVER_ZERO

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Step 5. Who missed the end serves the model trained alone, or else the global one."""
        networks = self._networks(client, down)
        shared, personal = networks["global"], networks.get("alone", networks["global"])
        if "weights" in client.state:
            personal = client.load(None, model="mixture")
            offsets = {"offsets": client.state["offsets"]} if self.offsets else {}
            cast(Mixture, personal.net).hold({name: model.net for name, model in networks.items()}, client.state["weights"], offsets)
        served: dict[str, Model | Served] = {"personal": Served(personal, main=True), "global": Served(shared, same_for_all=True)}
        return served | ({"alone": networks["alone"]} if self.alone else {})
