"""Variants of Poise and of fine-tuning: with clients that lie, and those of the development."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from equipoise.client import Client
from equipoise.losses import offsets
from equipoise.method import Method, Served, Ups, Weights
from equipoise.methods.finetune import Finetune
from equipoise.methods.poise import Poise
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import RunningMean
from equipoise.weighting import mixture_weights, simplex_grid
from equipoise.weighting.mixtures import chances

LYING = ("0", "1")
ORDER = ("alone", "global", "offsets", "tuned")


def reversed_step(up: Up, down: Down) -> Up:
    """Return a reply whose model is as far from the received one, on the other side."""
    return Up(model=(down.model + -1 * (up.model - down.model)).with_rest(up.model.rest))


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
class SeveralTunings(Finetune):
    """FedAvg with fine-tuning, of which one run serves what runs of several lengths would.

    `personal` is the mean of the second half of 27 epochs, `ft27` and `ft10` are the models after 27
    and 10 epochs, and `global` is FedAvg's.
    """

    tune_epochs: int = 27
    short: int = 10
    served_models = ("personal", "ft27", "ft10", "global")

    def tune(self, client: Client, down: Down) -> Up:
        """Tune the received model, and keep all models that are served."""
        model, mean = client.load(down.model), RunningMean()

        def keep(epoch: int) -> None:
            if epoch == self.short:
                client.state["ft10"] = client.load(model.tree())
            if epoch > self.tune_epochs // 2:
                mean.add(model.tree())

        client.fit(model, epochs=self.tune_epochs, purpose="tune", after_epoch=keep)
        client.state["ft27"] = model
        client.state["tuned"] = client.load(mean.tree())
        return Up()

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the tuned models and the global one."""
        served = super().serves(client, down)
        for name in ("ft27", "ft10"):
            served[name] = client.load(client.state.get(name, down.model))
        return served


@dataclass(frozen=True)
class KeepingL(Poise):
    """The second form, but clients that stop training L still serve it by its early evidence."""

    def settle(self, client: Client, down: Down) -> Up:
        """Weigh all experts."""
        if "likelihoods" not in client.state or "judged" in client.state:
            self.prepare(client, down)
        weights = mixture_weights(client.state.pop("likelihoods"), down.prior, self.kappa)
        client.state["weights"] = torch.from_numpy(weights)
        return Up()


@dataclass(frozen=True)
class Specified(KeepingL):
    """The second form as it was specified, from which development began."""

    hold: float = 0.667
    momentum: float = 0.0
    spend: bool = False


@dataclass(frozen=True)
class WithoutGlobal(Specified):
    """The second form without the global model as an expert; its offsets and tuned form stay."""

    def experts(self, client: Client, down: Down) -> tuple[dict[str, nn.Module], dict[str, str]]:
        """Return the experts but for the global model."""
        nets, experts = super().experts(client, down)
        del experts["global"]
        return nets, experts


@dataclass(frozen=True)
class SeveralLengths(Specified):
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
class VariantX(Specified):
    """G trains on all data throughout; clients judge at the end, so the evidence is not clean."""

    hold: float = 1.0

    def client(self, client: Client, down: Down) -> Up | None:
        """Train L_k on training data and G on all data."""
        self.learn_alone(client, down)
        with client.training_on_all():
            return Method.client(self, client, down)


@dataclass(frozen=True)
class RidgeHead(Specified):
    """The second form with one more expert: a new head on the features of G, in closed form.

    It is a ridge regression of the one-hot labels. Its penalty and the temperature of its
    probabilities minimise the loss of the leave-one-out predictions.
    """

    def make_experts(self, client: Client, shared: Model, start: Model) -> None:
        """Fit the head to the client's data, next to the other experts."""
        super().make_experts(client, shared, start)
        features = client.features(shared).double()
        weight = ridge_head(features, client.train.y, client.task.outputs)
        model = client.load(shared.tree())
        with torch.no_grad():
            model.net.head.weight.copy_(weight[:-1].T)
            model.net.head.bias.copy_(weight[-1])
        client.state["ridge"] = model

    def experts(self, client: Client, down: Down) -> tuple[dict[str, nn.Module], dict[str, str]]:
        """Return the experts and the one with the new head."""
        nets, experts = super().experts(client, down)
        nets["ridge"] = client.load(client.state["ridge"]).net
        experts["ridge"] = "ridge"
        return nets, experts


def ridge_head(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return weights and, in the last row, biases of the head with the best left-out loss."""
    x = torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], 1)
    target = one_hot(y.long(), classes).double()
    inner = x.T @ x
    best, best_loss = torch.zeros(x.shape[1], classes, dtype=x.dtype), np.inf
    for penalty in 10.0 ** np.arange(-2, 4):
        inverse = torch.linalg.inv(inner + penalty * torch.eye(len(inner), dtype=x.dtype))
        weight = inverse @ x.T @ target
        leverage = ((x @ inverse) * x).sum(1, keepdim=True).clamp(max=1 - 1e-6)
        left_out = target - (target - x @ weight) / (1 - leverage)
        for scale in (1.0, 2.0, 4.0, 8.0, 16.0):
            loss = float(cross_entropy(scale * left_out, y.long()))
            if loss < best_loss:
                best, best_loss = scale * weight, loss
    return best


@dataclass(frozen=True)
class CrossFitted(VariantX):
    """All data train throughout; each half is judged by an L and an F that did not see it.

    Two models are trained alone, each on half of the client's data, and F is tuned on each half.
    The steps are those of the second form. G has seen both halves, so its evidence is not clean.
    """

    def client(self, client: Client, down: Down) -> Up | None:
        """Train both L and G on all data."""
        with client.training_on_all():
            for half, name in enumerate(("local", "other_local")):
                model = client.load(client.state.get(name), model="private")
                client.fit(model, on=_half(client, half), purpose=f"half {half}")
                client.state[name] = model
            return Method.client(self, client, down)

    def judge(self, client: Client, down: Down) -> None:
        """Tune F on each half, and judge the other half."""
        shared = client.load(down.model)
        client.state["judged"] = shared
        with client.training_on_all():
            epochs = self.tuning_epochs(client)
            mean, rows = RunningMean(), []
            for half, name in enumerate(("local", "other_local")):
                seen, unseen = _half(client, half), _half(client, 1 - half)
                tuned = client.load(shared.tree())
                path = RunningMean()

                def keep(epoch: int, model: Model = tuned, path: RunningMean = path) -> None:
                    if epoch > epochs // 2:
                        path.add(model.tree())

                client.fit(tuned, on=seen, epochs=epochs, purpose=f"tune {half}", after_epoch=keep)
                mean.add(path.tree())
                own = client.load(client.state[name], model="private")
                rows.append(self._rows(client, own, shared, client.load(path.tree()), seen, unseen))
            client.state["tuned"] = client.load(mean.tree())
            client.state["likelihoods"] = torch.cat(rows)

    def _rows(
        self,
        client: Client,
        own: Model,
        shared: Model,
        tuned: Model,
        seen: Tensor,
        unseen: Tensor,
    ) -> Tensor:
        """Return the likelihoods of the samples of the unseen half, expert by expert."""
        common = client.predict(shared)
        fitted = offsets(common[seen], client.train.y[seen], self.rho, client.task)
        columns = (
            client.predict(own),
            common,
            common + torch.from_numpy(fitted),
            client.predict(tuned),
        )
        outputs = torch.stack([column.double()[unseen] for column in columns], 1)
        return torch.from_numpy(chances(outputs, client.train.y[unseen], client.task))

    def settle(self, client: Client, down: Down) -> Up:
        """Compute the weights; both L share that of L."""
        up = super().settle(client, down)
        weights = client.state["weights"]
        alone = weights[:1] / 2
        client.state["weights"] = torch.cat([alone, alone, weights[1:]])
        return up

    def experts(self, client: Client, down: Down) -> tuple[dict[str, nn.Module], dict[str, str]]:
        """Return the experts and the second L, next to the first."""
        nets, experts = super().experts(client, down)
        other = client.load(client.state["other_local"], model="private").net
        nets = {"alone": nets.pop("alone"), "other": other, **nets}
        experts.pop("alone")
        return nets, {"alone": "alone", "other": "other", **experts}


def _half(client: Client, half: int) -> Tensor:
    """Return the positions of a half of the client's samples, the same in every round."""
    order = torch.randperm(len(client.train), generator=client.common_stream("halves", client.id))
    return order[half::2]
