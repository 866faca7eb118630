"""Poise: a mixture of local and federated experts, weighed by each client's validation data.

A method of this project, 2026. No address except its page, docs/methods/poise.md, which describes
it and its evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
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
    """FedAvg, and local training next to it; each client serves a mixture of the results.

    The experts are the model trained alone (`private` in the experiment, or of the common
    architecture), the global model, the global model with offsets for the client's mix of labels,
    and the global model fine-tuned. After the last round each client weighs them by its validation
    data, with a prior on which the clients agree by exchanging a few numbers. As the `finish` of
    another method, its experts are the models that the other method serves instead of FedAvg's.

    Attributes:
        alone: Include an expert that is trained without the federation.
        offsets: Include the global model with offsets, of classes or of the level of a regression.
        tune_epochs: Epochs of fine-tuning the global model as another expert; 0 includes none.
        rho: Penalty rho that pulls offsets to 0.
        fold: Train the experts on the validation data, too, once these have weighed them.
        kappa: Strength kappa of the prior, in validation samples.
        prior: Prior from the mean of the clients' posteriors, or "pooled" from all validation data
            as one set.
        min_validation: Clients with fewer validation samples do not contribute to the prior.
        merit: Share of the weights that goes to the model trained alone, whatever the evidence.
    """

    family = "personal"
    year = 2026
    fairness = "no harm"
    exchanges = "1; at the end 2"
    passes = "2E·T, and at the end 3e·T + 2F, and 2e + 3 passes over the client's validation data"
    needs = ("labels",)
    served_models = ("personal", "global", "alone")
    composable_finish: ClassVar[bool] = True

    alone: bool = True
    offsets: bool = True
    tune_epochs: Annotated[int, Ge(0)] = 5
    rho: Positive = 1.0
    fold: bool = True
    kappa: NonNegative = 10.0
    prior: Literal["mean", "pooled"] = "mean"
    min_validation: Count = 10
    merit: Fraction = 0.0

    def check(self, task: Task) -> None:
        """Refuse a merit without the model trained alone."""
        if self.merit and not self.alone:
            raise ValueError(
                f"poise: merit={self.merit:g} gives weight to the model trained alone, but "
                "alone=false; set merit=0"
            )

    def models(
        self, task: Task, others: Mapping[str, Callable[[], nn.Module]]
    ) -> Mapping[str, Callable[[], nn.Module]]:
        """Return the experiment's `model` for `private` where it is not named."""
        if "private" in others or "model" not in others:
            return {}
        return {"private": others["model"]}

    def client(self, client: Client, down: Down) -> Up | None:
        """Train the client's own model alone, then the global one as FedAvg does."""
        self.learn_alone(client, down)
        return super().client(client, down)

    def after_round_guest(self, server: Server, state: State, cohort: Cohort) -> State:
        """Train the clients' own models after a round of another method."""
        cohort.run(self.learn_alone)
        return state

    def learn_alone(self, client: Client, down: Down) -> Up:
        """Train the client's own model L_k, independently of the federation."""
        if not self.alone:
            return Up()
        return Standalone("private").client(client, down)

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        """Agree on the prior and let every client weigh its experts."""
        if "prior" in state:  # These clients were absent when the others agreed.
            everyone.run(self.settle, Down(model=state.model, prior=state.prior))
            return state
        prior = self.agreed_prior(everyone.run(self.prepare, Down(model=state.model)))
        everyone.run(self.settle, Down(prior=prior))
        return state.with_(prior=prior)

    def base_models(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """Return the models of the federation; a composition replaces them by its base's."""
        return {"global": Served(client.load(down.model), same_for_all=True)}

    def prepare(self, client: Client, down: Down) -> Up:
        """Train the experts and report the evidence of the validation data (steps 1 and 2).

        Afterwards the validation data are training data like any other, if `fold` is set.
        """
        client.state.pop("alone", None)
        self._train_experts(client, down)
        likelihoods = self._likelihoods(client, down)
        client.state["_chances"] = torch.from_numpy(likelihoods)
        if self.fold:
            with client.training_on_all():
                self._train_experts(client, down)
                if self.alone and self.tune_epochs:
                    own = client.load(client.state.get("local"), model="private")
                    client.state["alone"] = tuned(client, own, self.tune_epochs, "tune alone")
        pooled = self.prior == "pooled"
        evidence = mixtures.evidence(likelihoods, pooled, self.min_validation)
        up = Up(evidence=torch.from_numpy(evidence))
        if pooled:
            up = up.with_(experts=likelihoods.shape[1])
        return up

    def _train_experts(self, client: Client, down: Down) -> None:
        """Fit the offsets and fine-tune the shared model."""
        _, shared = shared_of(self.base_models(client, down))
        if self.offsets:
            logits = client.predict(shared)
            fitted = offsets(logits, client.train.y, self.rho, client.task.classifies)
            client.state["offsets"] = torch.from_numpy(fitted)
        if self.tune_epochs:
            client.state["tuned"] = tuned(client, shared, self.tune_epochs)

    def _likelihoods(self, client: Client, down: Down) -> NDArray[np.float64]:
        """Return q_ij, the probability of the label of validation sample i under expert j."""
        mixture = self._mixture(client, down)
        samples = client.validation
        features = client.features(Model(mixture, "mixture"), samples)
        outputs = mixture.head.experts(features.double())
        return mixtures.chances(outputs, samples.y, client.task.classifies)

    def agreed_prior(self, ups: Ups) -> Tensor:
        """Return the prior of the clients' evidence (step 3).

        Evidence that is no posterior does not count, so a client moves the mean by its share at
        most.
        """
        evidence = [(up.evidence.numpy(), int(up.get("experts", len(up.evidence)))) for up in ups]
        return torch.from_numpy(mixtures.agreed(evidence, self.prior == "pooled"))

    def settle(self, client: Client, down: Down) -> Up:
        """Compute the weights of the experts from evidence and prior (step 4)."""
        if "_chances" not in client.state:
            self.prepare(client, down)
        weights = mixtures.mixture_weights(client.state.pop("_chances"), down.prior, self.kappa)
        is_alone = np.arange(len(weights)) == 0  # The model trained alone is the first expert.
        weights = (1 - self.merit) * weights + self.merit * is_alone
        client.state["weights"] = torch.from_numpy(weights)
        return Up()

    def _mixture(self, client: Client, down: Down) -> Mixture:
        """Return the experts as one network; before they are weighed, with equal weights.

        Several experts may share one network.
        """
        base = self.base_models(client, down)
        nets: dict[str, nn.Module] = {}
        if self.alone:
            own = client.state.get("alone", client.state.get("local"))
            nets["alone"] = client.load(own, model="private").net
        for name, served in base.items():
            nets[name] = model_of(served).net
        experts = {name: name for name in nets}
        if self.offsets:
            experts["offsets"] = shared_of(base)[0]
        if self.tune_epochs:
            nets["tuned"] = client.load(client.state["tuned"]).net
            experts["tuned"] = "tuned"
        added = {"offsets": client.state.get("offsets")}
        return Mixture(nets, experts, client.state.get("weights"), added, client.task)

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the mixture, the models of the federation, and the model trained alone (step 5).

        A client that was absent at the end serves the model trained alone, or else the shared one.
        """
        base = self.base_models(client, down)
        personal = shared_of(base)[1]
        alone = {}
        if self.alone:
            personal = client.load(client.state.get("local"), model="private")
            alone["alone"] = personal
        if "weights" in client.state:
            personal = Model(self._mixture(client, down), "mixture")
        served: dict[str, Model | Served] = {"personal": Served(personal, main=True)}
        served |= {name: model for name, model in base.items() if name != "personal"}
        return served | alone
