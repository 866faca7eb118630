"""Poise: a mixture of what a client learns alone and what all learn together, as far as its own validation data support each.

A method of this project, 2026. No address but its page, docs/methods/poise.md, which says what is known of it and what is not.
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
from equipoise.losses import offsets
from equipoise.method import (
    Cohort,
    Count,
    Fraction,
    Method,
    NonNegative,
    Positive,
    Served,
    Ups,
    model_of,
    shared_of,
)
from equipoise.methods.finetune import tuned
from equipoise.methods.standalone import Standalone
from equipoise.models import Mixture, Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task
from equipoise.weighting import mixtures


@dataclass(frozen=True)
class Poise(Method):
    """All train one model by FedAvg, each also one alone; at the end each serves the mixture that its validation data support.

    The experts: the model trained alone (`private` in the experiment, or of the common architecture), the global model, the global model
    with offsets for the client's mix of labels, and the global model fine-tuned. A prior for their weights is agreed on by a few numbers.
    In the slot `finish` of another method its experts are the models that this one serves, in place of FedAvg's.
    """

    family, year, fairness, exchanges = "personal", 2026, "no harm", "1; at the end 2"
    passes = "2E·T, and at the end 3e·T + 2F, and 2e + 3 passes over the client's validation data"
    composable_finish: ClassVar[bool] = True

    alone: bool = True  # an expert that is trained as if there were no federation
    offsets: bool = True  # an expert that is the global model with offsets: of classes, or of the level of numbers
    # of fine-tuning the global model, as another expert; 0: there is none
    tune_epochs: Annotated[int, Ge(0)] = 5
    rho: Positive = 1.0  # pull of the offsets to 0
    # once they have judged the experts, these are trained on the validation data, too
    fold: bool = True
    kappa: NonNegative = 10.0  # strength of the prior, in validation samples
    # from the means of the clients' posteriors; pooled: from all validation data as one set
    prior: Literal["mean", "pooled"] = "mean"
    # validation samples below which a client says nothing about the prior
    min_validation: Count = 10
    # share of the weights that goes to the model trained alone, whatever the evidence
    merit: Fraction = 0.0

    def check(self, task: Task) -> None:
        if self.merit and not self.alone:
            raise ValueError(
                f"poise: merit={self.merit:g} gives weight to the model trained alone, but alone=false; set merit=0"
            )

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        return {"private": others["model"]} if "private" not in others and "model" in others else {}

    def client(self, client: Client, down: Down) -> Up | None:
        self.learn_alone(client, down)
        return super().client(client, down)

    def after_round_guest(self, server: Server, state: State, cohort: Cohort) -> State:
        cohort.run(self.learn_alone)
        return state

    def learn_alone(self, client: Client, down: Down) -> Up:
        """L_k: nothing passes between it and what is trained together."""
        return Standalone("private").client(client, down) if self.alone else Up()

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        if "prior" in state:  # these came late: the others have agreed without them
            everyone.run(self.settle, Down(model=state.model, prior=state.prior))
            return state
        prior = self._agreed(everyone.run(self.prepare, Down(model=state.model)))
        everyone.run(self.settle, Down(prior=prior))
        return state.with_(prior=prior)

    def given(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """What was trained together; in a composition what its base serves."""
        return {"global": Served(client.load(down.model), same_for_all=True)}

    def prepare(self, client: Client, down: Down) -> Up:
        """Steps 1 and 2: the experts, and what the validation data say of them. Having said it, they are training data like any other."""
        client.state.pop("alone", None)
        self._train(client, down)
        mixture, samples = self._mixture(client, down), client.validation
        said = mixture.head.experts(client.features(Model(mixture, "mixture"), samples).double())
        # q_ij: what expert j gives to the label of validation sample i
        q = mixtures.chances(said, samples.y, client.task.classifies)
        client.state["_chances"] = torch.from_numpy(q)
        if self.fold:
            with client.training_on_all():
                self._train(client, down)
                if self.alone and self.tune_epochs:
                    own = client.load(client.state.get("local"), model="private")
                    client.state["alone"] = tuned(client, own, self.tune_epochs, "tune alone")
        up = Up(
            evidence=torch.from_numpy(
                mixtures.evidence(q, self.prior == "pooled", self.min_validation)
            )
        )
        return up.with_(experts=q.shape[1]) if self.prior == "pooled" else up

    def _train(self, client: Client, down: Down) -> None:
        _, shared = shared_of(self.given(client, down))
        if self.offsets:
            client.state["offsets"] = torch.from_numpy(
                offsets(client.predict(shared), client.train.y, self.rho, client.task.classifies)
            )
        if self.tune_epochs:
            client.state["tuned"] = tuned(client, shared, self.tune_epochs)

    def _agreed(self, ups: Ups) -> Tensor:
        """Step 3: the prior. What is no posterior at all does not count; so a client moves the mean by its share at most."""
        said = [(up.evidence.numpy(), int(up.get("experts", len(up.evidence)))) for up in ups]
        return torch.from_numpy(mixtures.agreed(said, self.prior == "pooled"))

    def settle(self, client: Client, down: Down) -> Up:
        """Step 4: the weights."""
        if "_chances" not in client.state:
            self.prepare(client, down)
        weights = mixtures.mixture_weights(client.state.pop("_chances"), down.prior, self.kappa)
        # the model trained alone stands first, where there is one
        own = np.arange(len(weights)) == 0
        client.state["weights"] = torch.from_numpy((1 - self.merit) * weights + self.merit * own)
        return Up()

    def _mixture(self, client: Client, down: Down) -> Mixture:
        """The experts as one network, some of which ask the same one; before they are weighed, all alike."""
        given = self.given(client, down)
        own = client.state.get("alone", client.state.get("local"))
        networks = {"alone": client.load(own, model="private")} if self.alone else {}
        networks |= {name: model_of(one) for name, one in given.items()}
        experts = {name: name for name in networks} | (
            {"offsets": shared_of(given)[0]} if self.offsets else {}
        )
        if self.tune_epochs:
            networks["tuned"], experts["tuned"] = client.load(client.state["tuned"]), "tuned"
        nets, added = (
            {name: one.net for name, one in networks.items()},
            {"offsets": client.state.get("offsets")},
        )
        return Mixture(nets, experts, client.state.get("weights"), added, client.task)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Step 5. Who missed the end serves the model trained alone, or else the shared one."""
        given = self.given(client, down)
        alone = (
            {"alone": client.load(client.state.get("local"), model="private")} if self.alone else {}
        )
        personal = alone.get("alone", shared_of(given)[1])
        if "weights" in client.state:
            personal = Model(self._mixture(client, down), "mixture")
        return (
            {"personal": Served(personal, main=True)}
            | {name: one for name, one in given.items() if name != "personal"}
            | alone
        )
