"""Poise: a mixture of local and federated experts, weighed by each client's validation data.

A method of this project, 2026. No address except its page, docs/methods/poise.md, which describes
it and its evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from equipoise.client import Client
from equipoise.losses import has_offsets, offsets
from equipoise.method import (
    Cohort,
    Count,
    Fraction,
    Method,
    NonNegative,
    Positive,
    Served,
    Ups,
    Weights,
    model_of,
    shared_of,
)
from equipoise.methods.fedavgm import FedAvgM
from equipoise.methods.finetune import tuned
from equipoise.methods.standalone import Standalone
from equipoise.models import Mixture, Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task
from equipoise.weighting import mixtures

ROUNDING = 1e-9  # of a share of the rounds, and of the weights of experts that are equally good


@dataclass(frozen=True)
class Poise(Method):
    """FedAvgM, and local training next to it; each client serves a mixture of the results.

    The experts are the model trained alone L (`private` in the experiment, or of the common
    architecture), the global model G, G with offsets for the client's mix of labels (B), and G
    fine-tuned (F). While validation data are held out, nobody trains on them. In its first later
    round a client judges the experts by them; one that has no L yet does so in its next round.
    From then on it trains on all its data. A client
    whose evidence is against L gives it up: it tunes F for as many epochs longer. After the last
    round the clients weigh the experts by this evidence, with a prior on which they agree by
    exchanging a few numbers.

    As the `finish` of another method, its experts are the models that the other method serves
    instead of FedAvg's. Validation data are then held out in all rounds, and clients judge at the
    end.

    Attributes:
        variant: The form of the method: "two", or "one" of version 0.2, which holds validation data
            out in all rounds, tunes for `tune_epochs` and begins anew to train on all data. It has
            no momentum and spends nothing.
        hold: Share of the rounds in which validation data are held out.
        momentum: Momentum beta of the server, as in FedAvgM; 0 for FedAvg.
        spend: Spend the epochs of L on F once a client's evidence is against L. Such a client
            serves L no more. Nobody spends with a `merit`, which L receives.
        fold: Train on the validation data, too, once they have judged; false: never.
        alone: Include an expert that is trained without the federation.
        offsets: Include the global model with offsets: of classes, of the level of a regression, or
            of the hazards of a survival model. A Cox model has no such expert.
        tune_epochs: Least number of epochs of fine-tuning; 0 leaves this expert out.
        tune_steps: Clients with little data tune for more epochs, until they have taken so many
            steps.
        tune_cap: Limit of these epochs, as a multiple of the epochs of all rounds.
        rho: Penalty rho that pulls offsets to 0.
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
    passes = (
        "2E·T, in one round e·T + F to judge, and at the end e·T + 3F; after judging, T includes "
        "the client's validation data, and the passes of L may move to the end"
    )
    served_models = ("personal", "global", "alone")
    composable_finish: ClassVar[bool] = True
    composable_update: ClassVar[bool] = True
    uses_validation: ClassVar[bool] = True

    variant: Literal["two", "one"] = "two"
    hold: Annotated[float, Gt(0), Le(1)] = 0.334
    momentum: Fraction = 0.5
    spend: bool = True
    fold: bool = True
    alone: bool = True
    offsets: bool = True
    tune_epochs: Annotated[int, Ge(0)] = 5
    tune_steps: Annotated[int, Ge(0)] = 100
    tune_cap: Count = 3
    rho: Positive = 1.0
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

    def held_out_rounds(self, rounds: int) -> int | None:
        """Return the last round of the hold-out phase, which has at least one."""
        if not self.fold:
            return None
        if self.variant == "one":
            return rounds
        return max(1, floor(self.hold * rounds + ROUNDING))

    # Rounds 1 to R.

    def client(self, client: Client, down: Down) -> Up | None:
        """Train L_k, and a copy of G as FedAvg does.

        The client judges in its first round after the hold-out phase, and may then give L_k up.
        """
        if self._has_to_judge(client):
            self.judge(client, down)
            if self._spends(client):
                client.state["saved_epochs"] = 0
        with client.training_on_all(self.fold and "likelihoods" in client.state):
            if "saved_epochs" in client.state:
                client.state["saved_epochs"] += client.training.epochs
            else:
                self.learn_alone(client, down)
            return super().client(client, down)

    def update(self, server: Server, state: State, ups: Ups, weights: Weights) -> State:
        """Move the global model by the mean of the uploads, with momentum as in FedAvgM."""
        if not self.momentum or self.variant == "one":
            return super().update(server, state, ups, weights)
        if "velocity" not in state:
            state = state.with_(velocity=0 * state.model)
        return FedAvgM(beta=self.momentum).update(server, state, ups, weights)

    def after_round_guest(self, server: Server, state: State, cohort: Cohort) -> State:
        """Train the clients' own models after a round of another method."""
        cohort.run(self.learn_alone)
        return state

    def learn_alone(self, client: Client, down: Down) -> Up:
        """Train the client's own model L_k, independently of the federation."""
        if not self.alone:
            return Up()
        return Standalone("private").client(client, down)

    def _has_to_judge(self, client: Client) -> bool:
        """Return True in the client's first round after the hold-out phase in which it has an L."""
        held_out = self.held_out_rounds(client.rounds)
        is_due = held_out is not None and client.round > held_out
        has_experts = not self.alone or "local" in client.state
        return is_due and has_experts and "likelihoods" not in client.state

    def judge(self, client: Client, down: Down) -> None:
        """Make B and F from training data; store the likelihoods of all experts (steps 1 and 2).

        No model has seen the client's validation data by then.
        """
        _, shared = shared_of(self.base_models(client, down))
        client.state["judged"] = shared
        self.make_experts(client, shared, shared)
        client.state["likelihoods"] = self.likelihoods(client, down)

    def _spends(self, client: Client) -> bool:
        """Return True if the evidence gives L less than an equal share of the weights."""
        likelihoods = client.state["likelihoods"].numpy()
        can_spend = self.spend and self.alone and self.tune_epochs and not self.merit
        if self.variant == "one" or not can_spend or not len(likelihoods):
            return False
        posterior = mixtures.evidence(likelihoods)
        return bool(posterior[0] < 1 / len(posterior) - ROUNDING)

    def make_experts(self, client: Client, shared: Model, start: Model) -> None:
        """Fit the offsets of B to G, and tune F (step 1).

        Args:
            client: The client.
            shared: The global model G.
            start: The model from which F is tuned.
        """
        if self._has_offsets(client.task):
            fitted = offsets(client.predict(shared), client.train.y, self.rho, client.task)
            client.state["offsets"] = torch.from_numpy(fitted)
        if self.tune_epochs and self.variant == "one":
            client.state["tuned"] = tuned(client, start, self.tune_epochs)
        elif self.tune_epochs:
            client.state["tuned"] = tuned(
                client, start, self.tuning_epochs(client), average="second_half"
            )

    def tuning_epochs(self, client: Client) -> int:
        """Return max(tune_epochs, tune_steps / batches), plus the epochs that L gave up.

        The second number has a limit.
        """
        batches = ceil(len(client.train) / client.training.batch)
        limit = self.tune_cap * client.rounds * client.training.epochs
        by_steps = ceil(self.tune_steps / max(1, batches))
        saved: int = client.state.get("saved_epochs", 0)
        return max(self.tune_epochs, min(by_steps, limit)) + saved

    def likelihoods(self, client: Client, down: Down) -> Tensor:
        """Return q_ij, the likelihood of validation sample i under expert j (step 2)."""
        mixture = self._mixture(client, down)
        samples = client.validation
        features = client.features(Model(mixture, "mixture"), samples)
        outputs = mixture.head.experts(features.double())
        return torch.from_numpy(mixtures.chances(outputs, samples.y, client.task))

    # The end.

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
        """Make the final experts, and report the client's posterior of the weights (step 4)."""
        if self.variant == "one":
            self._make_experts_of_first_form(client, down)
        else:
            self._make_final_experts(client, down)
        likelihoods = client.state["likelihoods"].numpy()
        pooled = self.prior == "pooled"
        evidence = mixtures.evidence(likelihoods, pooled, self.min_validation)
        up = Up(evidence=torch.from_numpy(evidence))
        return up.with_(experts=likelihoods.shape[1]) if pooled else up

    def _make_final_experts(self, client: Client, down: Down) -> None:
        """Move what F learned to the final G, and tune on all data (step 3)."""
        if "likelihoods" not in client.state:
            self.judge(client, down)
        judged = client.load(client.state.pop("judged"))
        if not self.fold:
            return
        _, final = shared_of(self.base_models(client, down))
        shift = client.state["tuned"] - judged.tree() if self.tune_epochs else None
        if _became_worse(client, final, judged):
            client.state["guarded"] = judged
            final = judged
        start = final if shift is None else client.load(final.tree() + shift)
        with client.training_on_all():
            self.make_experts(client, final, start)

    def agreed_prior(self, ups: Ups) -> Tensor:
        """Return the prior of the clients' evidence (step 4).

        Evidence that is no posterior does not count, so a client moves the mean by its share at
        most.
        """
        evidence = [(up.evidence.numpy(), int(up.get("experts", len(up.evidence)))) for up in ups]
        return torch.from_numpy(mixtures.agreed(evidence, self.prior == "pooled"))

    def settle(self, client: Client, down: Down) -> Up:
        """Compute the weights of the experts from evidence and prior (step 5)."""
        if "likelihoods" not in client.state or "judged" in client.state:
            self.prepare(client, down)  # It was absent when the others agreed.
        weights = mixtures.mixture_weights(client.state.pop("likelihoods"), down.prior, self.kappa)
        is_alone = np.arange(len(weights)) == 0  # The model trained alone is the first expert.
        weights = (1 - self.merit) * weights + self.merit * is_alone
        if "saved_epochs" in client.state:
            # L has stopped early, so the evidence about it no longer says how good it is.
            weights = ~is_alone * weights / weights[~is_alone].sum()
        client.state["weights"] = torch.from_numpy(weights)
        return Up()

    def _has_offsets(self, task: Task) -> bool:
        return self.offsets and has_offsets(task)

    def _mixture(self, client: Client, down: Down) -> Mixture:
        """Return the experts as one network; before they are weighed, with equal weights."""
        nets, experts = self.experts(client, down)
        added = {"offsets": client.state.get("offsets")}
        return Mixture(nets, experts, client.state.get("weights"), added, client.task)

    def experts(self, client: Client, down: Down) -> tuple[dict[str, nn.Module], dict[str, str]]:
        """Return networks by name, and the name of the network of each expert.

        Several experts may share one network.
        """
        base = self.base_models(client, down)
        shared_name, _ = shared_of(base)
        nets: dict[str, nn.Module] = {}
        if self.alone:
            own = client.state.get("alone", client.state.get("local"))
            nets["alone"] = client.load(own, model="private").net
        for name, served in base.items():
            nets[name] = model_of(served).net
        if "guarded" in client.state:
            nets[shared_name] = client.load(client.state["guarded"]).net
        experts = {name: name for name in nets}
        if self._has_offsets(client.task):
            experts["offsets"] = shared_name
        if self.tune_epochs:
            nets["tuned"] = client.load(client.state["tuned"]).net
            experts["tuned"] = "tuned"
        return nets, experts

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the mixture, the models of the federation, and the model trained alone (step 6).

        A client without weights, such as one that was absent at the end, serves the model trained
        alone. If it has given that up, it serves the shared model with what F learned; without
        `alone` the shared one.
        """
        base = self.base_models(client, down)
        personal = shared_of(base)[1]
        alone = {}
        if self.alone:
            alone["alone"] = client.load(client.state.get("local"), model="private")
            gave_up = "saved_epochs" in client.state
            personal = self._carried(client, personal) if gave_up else alone["alone"]
        if "weights" in client.state:
            personal = Model(self._mixture(client, down), "mixture")
        served: dict[str, Model | Served] = {"personal": Served(personal, main=True)}
        served |= {name: model for name, model in base.items() if name != "personal"}
        return served | alone

    def _carried(self, client: Client, shared: Model) -> Model:
        """Return the shared model with what F learned when the client judged (step 3, untuned)."""
        if "judged" not in client.state:  # It has its final F, and missed only the weights.
            return client.load(client.state["tuned"])
        judged = client.load(client.state["judged"])
        start = judged if _became_worse(client, shared, judged) else shared
        return client.load(start.tree() + (client.state["tuned"] - judged.tree()))

    # The first form, for one release.

    def _make_experts_of_first_form(self, client: Client, down: Down) -> None:
        """Judge the experts after the last round, then make them anew on all data."""
        client.state.pop("alone", None)
        _, shared = shared_of(self.base_models(client, down))
        self.make_experts(client, shared, shared)
        client.state["likelihoods"] = self.likelihoods(client, down)
        if not self.fold:
            return
        with client.training_on_all():
            self.make_experts(client, shared, shared)
            if self.alone and self.tune_epochs:
                own = client.load(client.state.get("local"), model="private")
                client.state["alone"] = tuned(client, own, self.tune_epochs, "tune alone")


def _became_worse(client: Client, shared: Model, judged: Model) -> bool:
    """Return True if a global model is worse for this client than the one that it judged.

    Such a model does not count (the guard). One whose loss is not a number is worse, too.
    """
    return not client.loss(shared) <= client.loss(judged)
