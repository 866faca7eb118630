"""A client, as a method sees it: its training data, the state it keeps, and the one training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.data import augment
from equipoise.data.samples import Samples
from equipoise.losses.terms import Batch, Loss, supervised
from equipoise.models import Model, Outputs
from equipoise.records import plain
from equipoise.streams import Turn, default_generator, number, torch_stream
from equipoise.training import GradientHook, Stepper, backward, minimise
from equipoise.training.workbench import Workbench
from equipoise.tree import Tree


@dataclass(frozen=True)
class Inputs:
    """How a method changes what enters the network: while training (may draw random numbers), and everywhere else.

    `other` is a torch module with its constants as buffers where trained models are to be exported.
    """

    train: Callable[[Tensor, torch.Generator], Tensor]
    other: Callable[[Tensor], Tensor]
    random: bool = True


@dataclass(frozen=True)
class FitResult:
    """What a fit did."""

    steps: int
    loss: float  # mean over all samples visited, of the first model's loss
    skipped: int  # batches of one sample that a batch norm cannot take
    memory: dict[str, Any]  # the optimiser's, to be given to a later fit


class ClientState(MutableMapping[str, Any]):
    """What a client keeps between rounds; it stands once the server accepted the reply. Keys with a leading _ end with the round."""

    def __init__(self, values: Mapping[str, Any], whole: ClientState | None = None) -> None:
        self._values = dict(values)
        self.whole = whole or self  # where this is a guest's branch, the state of the composition
        self.changed = False

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        value = plain(value, f"client.state[{name!r}]")
        self._values[name] = value
        self.changed = True

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self.changed = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Client:
    """One data holder at work on one request."""

    def __init__(
        self,
        bench: Workbench,
        id: str,
        round: int,
        rounds: int,
        state: Mapping[str, Any],
        attempt: int = 0,
    ) -> None:
        self.id, self.round, self.rounds, self.attempt = id, round, rounds, attempt
        self._bench = bench.without_data()
        self._own = (
            {name: bench.part(id, name) for name in ("train", "validation")}
            if bench.federation is not None
            else {}
        )
        self.task, self.training, self.metrics = bench.task, bench.training, bench.metrics
        # what comes after the last round trains as it did
        self.lr = bench.training.rate(min(round, rounds))
        self.state = ClientState(state)
        self.inputs: Inputs | None = None
        self._on_all = False
        self.steps = 0  # taken in this request, over all fits
        self.skipped = 0

    @property
    def device(self) -> str:
        return self._bench.device

    @property
    def train(self) -> Samples:
        return (
            self._part("train").with_(self._part("validation"))
            if self._on_all
            else self._part("train")
        )

    @property
    def validation(self) -> Samples:
        return self._part("validation")

    def _part(self, name: str) -> Samples:
        if name not in self._own:
            raise RuntimeError(
                f"client {self.id} was asked for its {name} data, but this process has none loaded"
            )
        return self._own[name]

    @contextmanager
    def training_on_all(self) -> Iterator[None]:
        """Within it the validation data are training data, too: for what is trained once they have judged."""
        self._on_all = True
        try:
            yield
        finally:
            self._on_all = False

    @contextmanager
    def guest_state(self, owner: str) -> Iterator[None]:
        """Within it the state is the branch of a method that fills a slot of another."""
        whole = self.state
        self.state = ClientState(whole.get(owner, {}), whole)
        try:
            yield
            if self.state.changed:
                whole[owner] = dict(self.state)
        finally:
            self.state = whole

    @contextmanager
    def host_state(self) -> Iterator[None]:
        """Within it a guest sees what the method that it belongs to sees."""
        branch, self.state = self.state, self.state.whole
        try:
            yield
        finally:
            self.state = branch

    def _names(self, purpose: str) -> tuple[str | int, ...]:
        # The attempt joins the name only after a round was given up: a round cut off by a kill is repeated bit for bit.
        return (
            "client",
            self.round,
            *((f"attempt {self.attempt}",) if self.attempt else ()),
            self.id,
            purpose,
        )

    def stream(self, purpose: str) -> torch.Generator:
        """The random numbers of this client, in this round, for this purpose."""
        return torch_stream(self._bench.seed, *self._names(purpose))

    def seed(self, purpose: str) -> int:
        return number(self._bench.seed, *self._names(purpose))

    def common_stream(self, *purpose: str | int) -> torch.Generator:
        """Random numbers that are the same at every client and in every round of the run."""
        return torch_stream(self._bench.seed, *purpose)

    def initial(self, model: str = "model") -> Tree:
        """The named model as it was initialised, of this client's own architecture where it has one."""
        return self._bench.initial(self._bench.key(model, self.id))

    def load(self, tree: Tree | None, model: str = "model") -> Model:
        """The tree's parameters and buffers in a network of the tree's architecture; without a tree, the named model as it was initialised."""
        return (
            self._bench.take(tree.model, tree)
            if tree is not None
            else self._bench.take(self._bench.key(model, self.id))
        )

    def fit(
        self,
        model: Model | Sequence[Model],
        loss: Loss | Sequence[Loss] = supervised,
        *,
        on: Tensor | None = None,
        gradient: GradientHook | None = None,
        memory: Mapping[str, Any] | None = None,
        purpose: str = "batches",
        **changes: Any,
    ) -> FitResult:
        """Train one model, or several on the same batches, each with its own loss.

        `on`: a mask or the positions of the samples to use. `gradient(name, g)` replaces each gradient before clipping. `memory`: the optimiser's,
        as an earlier fit returned it. `purpose` names the stream of the batch order: two fits of one purpose see the same batches. Other
        keywords (`optimiser`, `lr`, `batch`, `epochs`, `steps`, `clip`, ...) change the experiment's training settings for this fit.
        """
        models = [model] if isinstance(model, Model) else list(model)
        losses = [loss] if isinstance(loss, Loss) else list(loss)
        training = self.training.changed(changes) if changes else self.training
        lr = changes.get("lr", self.lr)
        samples = self.train
        positions = (
            torch.arange(len(samples))
            if on is None
            else on.nonzero().squeeze(1)
            if on.dtype == torch.bool
            else on
        )
        order, noise = self.stream(purpose), self.stream(f"{purpose} inputs")
        single = len(positions) and all(m.takes_single for m in models)
        steppers = [
            Stepper(
                m.trained,
                training,
                lr,
                memory if len(models) == 1 else (memory or {}).get(str(k)),
                gradient,
            )
            for k, m in enumerate(models)
        ]
        total, seen, steps, skipped, epoch = 0.0, 0, 0, 0, 0
        for m in models:
            m.net.train()
        with default_generator(self._bench.seed, *self._names(f"{purpose} torch")):
            # dropout: each model draws the numbers that it would draw alone
            turns = [Turn() for _ in models]
            while len(positions) and (
                steps < training.steps if training.steps else epoch < training.epochs
            ):
                before = steps
                for position, chosen in enumerate(
                    torch.split(
                        positions[torch.randperm(len(positions), generator=order)], training.batch
                    )
                ):
                    if len(chosen) == 1 and not single:
                        skipped += 1
                        continue
                    x, y = samples.at(chosen)
                    x = self._training_inputs(x.to(self._bench.device), noise)
                    batch = Batch(
                        x,
                        y.to(self._bench.device),
                        chosen,
                        self._bench.supervise,
                        epoch,
                        steps,
                        position,
                        noise,
                    )
                    value = self._step(models, losses, steppers, turns, batch)
                    total += value * len(chosen)
                    seen, steps = seen + len(chosen), steps + 1
                    if training.steps and steps >= training.steps:
                        break
                epoch += 1
                if steps == before:  # every batch was skipped: more epochs would not help
                    break
        self.steps, self.skipped = self.steps + steps, self.skipped + skipped
        kept = (
            steppers[0].state()
            if len(models) == 1
            else {str(k): s.state() for k, s in enumerate(steppers)}
        )
        return FitResult(steps, total / max(1, seen), skipped, kept)

    def _forward(self, model: Model, x: Tensor) -> Outputs:
        if self.training.precision == "float32":
            return model(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            outputs = model(x)
        outputs.features, outputs.logits = (
            outputs.features.float(),
            outputs.logits.float(),
        )  # losses are computed in full precision
        return outputs

    def _step(
        self,
        models: list[Model],
        losses: list[Loss],
        steppers: list[Stepper],
        turns: list[Turn],
        batch: Batch,
    ) -> float:
        if len(models) == 1:
            value = losses[0](self._forward(models[0], batch.x), batch)
            steppers[0].step(value)
            return value.item()
        passes = []
        for model, turn in zip(models, turns, strict=True):
            with turn:
                passes.append(self._forward(model, batch.x))
        outputs, values = tuple(passes), []
        for own, one, turn in zip(losses, outputs, turns, strict=True):
            one.peers = outputs
            with turn:
                values.append(own(one, batch))
        for stepper in steppers:
            for tensor in stepper.tensors:
                tensor.grad = None
        # One backward pass over the sum: a loss that detaches its peers reaches its own model only.
        backward(torch.stack(values).sum())
        for stepper in steppers:
            stepper.apply()
        return values[0].item()

    def _training_inputs(self, x: Tensor, noise: torch.Generator) -> Tensor:
        if self._bench.augment:
            x = augment(x, self._bench.augment, noise)
        return self.inputs.train(x, noise) if self.inputs is not None else x

    @property
    def random_inputs(self) -> bool:
        """Whether the network sees a sample differently at every visit: then nothing by sample can be cached."""
        return bool(self._bench.augment) or (self.inputs is not None and self.inputs.random)

    @property
    def _other(self) -> Callable[[Tensor], Tensor] | None:
        return self.inputs.other if self.inputs is not None else None

    def predict(self, model: Model, on: Samples | None = None) -> Tensor:
        """The model's logits on the training data (or others), in evaluation mode."""
        return self._bench.outputs(model, self.train if on is None else on, self._other)

    def features(self, model: Model, on: Samples | None = None) -> Tensor:
        return self._bench.outputs(
            model, self.train if on is None else on, self._other, features=True
        )

    def teacher(self, model: Model) -> Tensor | Model:
        """A frozen model as a teacher: its logits computed once, or the model itself where inputs are random."""
        return model if self.random_inputs else self.predict(model)

    def feature_teacher(self, model: Model) -> Tensor | Model:
        """As `teacher`, for a loss on features: see `losses.terms.frozen_features`."""
        return model if self.random_inputs else self.features(model)

    def batches(self, size: int | None = None) -> Iterator[Batch]:
        """The training data in order, as the network sees them outside training."""
        samples = self.train
        for position, chosen in enumerate(
            torch.split(torch.arange(len(samples)), size or self.training.batch)
        ):
            x, y = samples.at(chosen)
            x = x.to(self._bench.device)
            yield Batch(
                x if self._other is None else self._other(x),
                y.to(self._bench.device),
                chosen,
                self._bench.supervise,
                position=position,
                step=position,
            )

    def loss(self, model: Model) -> float:
        """The task's loss over the training data, in evaluation mode."""
        logits = self.predict(model)
        return float(self._bench.supervise(logits, self.train.y)) if len(logits) else 0.0

    def gradient(self, model: Model) -> Tree:
        """The gradient of the loss over all training data, in evaluation mode."""
        model.net.eval()
        samples = len(self.train)
        model.net.zero_grad(set_to_none=True)
        for batch in self.batches():
            outputs: Outputs = model(batch.x)
            backward(batch.supervise(outputs.logits, batch.y) * (len(batch.y) / samples))
        found = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.detach().cpu().clone()
            for name, p in model.trained.items()
        }
        model.net.zero_grad(set_to_none=True)
        return Tree(found, model.name)

    minimise = staticmethod(minimise)
