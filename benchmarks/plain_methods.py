"""Each method as a plain loop over torch: the passes, batches and losses of Equipoise, nothing of
its machinery, all state in memory.

A method is an iterator that gives None after each client's part of a round and the new global model
at the end of the round. Formulas are written for the setting that is measured: every client takes
part in every round, one epoch, plain SGD, default hyper-parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional

State = list[Tensor]
Steps = Iterator[State | None]
# network, inputs, labels, places in the client's data
Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]

PASSED_AT_ONCE = 256
GENERATOR_STEPS, GENERATOR_BATCH, POOL_BATCHES, NOISE = 50, 64, 200, 100


@dataclass(frozen=True)
class Job:
    """Data, networks and random numbers; the same that Equipoise gets."""

    x: Tensor
    y: Tensor
    parts: list[Tensor]
    network: Callable[[str], nn.Module]  # a new network of that name with its initial parameters
    draw: Callable[..., torch.Generator]  # the generator of that name
    rounds: int
    batch: int
    rate: float

    @property
    def sizes(self) -> np.ndarray:
        """The number of samples of each client."""
        return np.array([len(part) for part in self.parts], dtype=np.float64)


def fedavg(job: Job) -> Steps:
    """McMahan et al., 2017."""
    net = job.network("model")
    shared = snapshot(net)
    for number in range(1, job.rounds + 1):
        replies = []
        for client in range(len(job.parts)):
            fill(net, shared)
            train(job, number, client, net, supervised)
            replies.append(snapshot(net))
            yield None
        shared = mean(replies, job.sizes)
        yield shared


def fedakd(job: Job) -> Steps:
    """Yu et al., KDD 2025, Algorithm 1."""
    net, local = job.network("model"), job.network("model")
    shared = snapshot(net)
    personal = [shared] * len(job.parts)
    for number in range(1, job.rounds + 1):
        replies = []
        for client, part in enumerate(job.parts):
            fill(net, shared)
            fill(local, personal[client])
            train(job, number, client, local, distilled(predict(job, client, net)))
            personal[client] = snapshot(local)
            teacher = predict(job, client, local)
            correct = (teacher.argmax(1) == job.y.index_select(0, part)).nonzero().flatten()
            train(job, number, client, net, distilled(teacher), places=correct)
            replies.append(snapshot(net))
            yield None
        shared = mean(replies, job.sizes)
        yield shared


def kdia(job: Job) -> Steps:
    """Ma, KDIA, Algorithms 1-2, with the generator's quick schedule."""
    net, generator = job.network("model"), job.network("generator")
    shared = teacher = snapshot(net)
    for number in range(1, job.rounds + 1):
        replies = []
        for client, part in enumerate(job.parts):
            fill(net, teacher)
            answers = predict(job, client, net)
            fill(net, shared)
            noise, pool = (
                job.draw("client", number, client, "kdia noise"),
                job.draw("client", number, client, "kdia labels"),
            )
            labels = torch.randint(10, (len(part),), generator=pool)
            labels = labels[torch.randperm(len(part), generator=pool)]
            train(
                job,
                number,
                client,
                net,
                with_generated(answers, generator.eval(), labels.split(job.batch), noise),
            )
            replies.append(snapshot(net))
            yield None
        shared = mean(replies, job.sizes)
        # triFreqs where nobody was ever absent
        teacher = mean(replies, np.cbrt(number * job.sizes))
        train_generator(job, number, net, replies, generator)
        yield shared


def fedequilibria(job: Job) -> Steps:
    """FedEquilibria, Algorithm 1."""
    net = job.network("model")
    shared = snapshot(net)
    for number in range(1, job.rounds + 1):
        before = parameters(net, shared)
        replies, profiles, drifts = [], [], []
        for client in range(len(job.parts)):
            fill(net, shared)
            train(job, number, client, net, supervised)
            replies.append(snapshot(net))
            drifts.append(float((parameters(net, replies[-1]) - before).norm()))
            profiles.append(functional.normalize(fisher(job, client, net), dim=0))
            yield None
        stacked = torch.stack(profiles)
        factor = np.linalg.cholesky(
            (stacked @ stacked.T).double().numpy() + 1e-10 * np.eye(len(profiles))
        ).T
        conflict, _ = nnls(
            np.vstack([factor, np.ones(len(factor))]), np.append(np.zeros(len(factor)), 1.0)
        )
        drift = np.array(drifts)
        shared = mean(replies, 0.7 * conflict / conflict.sum() + 0.3 * drift / drift.sum())
        yield shared


def fedekd(job: Job) -> Steps:
    """Nguyen, Wang and Ku, FedeKD, Algorithm 1."""
    private, proxy = job.network("private"), job.network("proxy")
    shared, own = snapshot(proxy), [snapshot(private)] * len(job.parts)
    for number in range(1, job.rounds + 1):
        replies = []
        for client in range(len(job.parts)):
            fill(private, own[client])
            fill(proxy, shared)
            train(
                job,
                number,
                client,
                proxy,
                mimicry(predict(job, client, private)),
                purpose="forward",
            )
            replies.append(snapshot(proxy))
            yield None
        shared = mean(replies, np.ones(len(replies)))
        fill(proxy, shared)
        for client in range(len(job.parts)):
            fill(private, own[client])
            train(job, number, client, private, gated(predict(job, client, proxy)))
            own[client] = snapshot(private)
            yield None
        yield shared


def corefed(job: Job) -> Steps:
    """Mukhtiar, Mahmood and Sheng, CoRe-Fed, AAAI 2026, Algorithm 1."""
    net = job.network("model")
    shared = snapshot(net)
    for number in range(1, job.rounds + 1):
        replies, embeddings = [], []
        for client in range(len(job.parts)):
            fill(net, shared)
            train(job, number, client, net, supervised)
            replies.append(snapshot(net))
            embeddings.append(
                functional.normalize(predict(job, client, net.features), dim=1).mean(0)
            )
            yield None
        stacked = torch.stack(embeddings)
        common = stacked.mean(0)
        contrast(stacked, common)
        aligned = functional.cosine_similarity(stacked, common, dim=1)
        refined = functional.cosine_similarity(
            (stacked + aligned.unsqueeze(1) * common) / 2, common, dim=1
        )
        shared = mean(replies, torch.sigmoid(2 * refined).double().numpy())
        yield shared


def snapshot(net: nn.Module) -> State:
    """A copy of all parameters and buffers."""
    return [tensor.detach().clone() for tensor in net.state_dict().values()]


def fill(net: nn.Module, state: State) -> None:
    """Puts a snapshot back."""
    with torch.no_grad():
        for tensor, saved in zip(net.state_dict().values(), state, strict=True):
            tensor.copy_(saved)


def parameters(net: nn.Module, state: State) -> Tensor:
    """The trained part of a snapshot as one vector."""
    trained = dict(net.named_parameters())
    return torch.cat(
        [
            tensor.flatten()
            for name, tensor in zip(net.state_dict(), state, strict=True)
            if name in trained
        ]
    )


def mean(states: Sequence[State], weights: np.ndarray) -> State:
    """The weighted mean of snapshots; counters take the maximum."""
    shares = (weights / weights.sum()).tolist()
    result = []
    for column in zip(*states, strict=True):
        if not column[0].is_floating_point():
            result.append(torch.stack(column).amax(0))
            continue
        total = column[0] * shares[0]
        for tensor, share in zip(column[1:], shares[1:], strict=True):
            total.add_(tensor, alpha=share)
        result.append(total)
    return result


def train(
    job: Job,
    number: int,
    client: int,
    net: nn.Module,
    loss: Loss,
    places: Tensor | None = None,
    purpose: str = "batches",
) -> None:
    """One epoch over a client's data, or over some places of it."""
    part, tensors = job.parts[client], list(net.parameters())
    places = torch.arange(len(part)) if places is None else places
    order = torch.randperm(len(places), generator=job.draw("client", number, client, purpose))
    net.train()
    for chosen in places[order].split(job.batch) if len(places) else ():
        index = part[chosen]
        for tensor in tensors:
            tensor.grad = None
        loss(net, job.x.index_select(0, index), job.y.index_select(0, index), chosen).backward()
        with torch.no_grad():
            gradients = [tensor.grad for tensor in tensors]
            torch._fused_sgd_(
                tensors,
                gradients,
                [],
                weight_decay=0.0,
                momentum=0.0,
                lr=job.rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )


@torch.no_grad()
def predict(job: Job, client: int, net: nn.Module) -> Tensor:
    """Outputs over a client's data in evaluation mode."""
    net.eval()
    return torch.cat(
        [net(job.x.index_select(0, index)) for index in job.parts[client].split(PASSED_AT_ONCE)]
    )


def supervised(net: nn.Module, x: Tensor, y: Tensor, places: Tensor) -> Tensor:
    """Return the cross-entropy of a batch."""
    return functional.cross_entropy(net(x), y)


def divergence(student: Tensor, teacher: Tensor, reduction: str = "batchmean") -> Tensor:
    """Return KL(teacher || student)."""
    return functional.kl_div(
        student.log_softmax(1), teacher.log_softmax(1), reduction=reduction, log_target=True
    )


def distilled(teacher: Tensor) -> Loss:
    """Return cross-entropy plus distillation from stored logits."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, places: Tensor) -> Tensor:
        logits = net(x)
        return functional.cross_entropy(logits, y) + divergence(
            logits, teacher.index_select(0, places)
        )

    return loss


def mimicry(teacher: Tensor) -> Loss:
    """Return the distillation from stored logits alone."""
    return lambda net, x, y, places: divergence(net(x), teacher.index_select(0, places))


def gated(teacher: Tensor) -> Loss:
    """FedeKD, Eq. 1-5: distillation weighted sample by sample with the trust in the teacher."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, places: Tensor) -> Tensor:
        logits, target = net(x), teacher.index_select(0, places)
        with torch.no_grad():
            first, second = logits.log_softmax(1), target.log_softmax(1)
            p, q = first.exp(), second.exp()
            entropies = -(p * first + q * second).sum(1)
            energy = ((p - q) * (first - second)).sum(1) / 2 / (entropies + 1e-8)
            trust = torch.sigmoid(-(energy - energy.mean()) / (energy.std(correction=0) + 1e-8))
        return (
            functional.cross_entropy(logits, y)
            + (trust * divergence(logits, target, "none").sum(1)).mean()
        )

    return loss


def with_generated(
    teacher: Tensor, generator: nn.Module, labels: Sequence[Tensor], noise: torch.Generator
) -> Loss:
    """KDIA, Eq. 11-13: a teacher at temperature 2, and the head on generated features."""
    coming = iter(labels)

    def loss(net: nn.Module, x: Tensor, y: Tensor, places: Tensor) -> Tensor:
        logits, targets = net(x), next(coming)
        with torch.no_grad():
            features = generator(torch.randn(len(targets), NOISE, generator=noise), targets)
        generated = functional.cross_entropy(net.head(features), targets)
        return (
            functional.cross_entropy(logits, y)
            + 0.5 * divergence(logits / 2, teacher.index_select(0, places) / 2)
            + generated
        )

    return loss


def train_generator(
    job: Job, number: int, net: nn.Module, replies: list[State], generator: nn.Module
) -> None:
    """KDIA, Eq. 3-4: features that the clients' heads together take for their labels, and that
    differ where their noise does.
    """
    noise, pool = (
        job.draw("server", number, "kdia noise"),
        job.draw("server", number, "kdia labels"),
    )
    labels = torch.randint(10, (POOL_BATCHES * GENERATOR_BATCH,), generator=pool)
    labels = labels[torch.randperm(len(labels), generator=pool)]
    named = [dict(zip(net.state_dict(), state, strict=True)) for state in replies]
    heads = {
        name: torch.stack([entries[name] for entries in named])
        for name in named[0]
        if name.startswith("head.")
    }
    shares = torch.from_numpy(job.sizes / job.sizes.sum()).float()
    optimiser = torch.optim.Adam(generator.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    generator.train()
    for targets in labels.split(GENERATOR_BATCH)[:GENERATOR_STEPS]:
        drawn = torch.randn(GENERATOR_BATCH, NOISE, generator=noise)
        features = generator(drawn, targets)
        answers = torch.tensordot(shares, stacked_heads(net.head, heads, features), 1)
        made, given = (
            (first - second).abs().mean() for first, second in (features.chunk(2), drawn.chunk(2))
        )
        optimiser.zero_grad()
        (functional.cross_entropy(answers, targets) + 1 / (made / given + 1e-5)).backward()
        optimiser.step()


def stacked_heads(head: nn.Sequential, entries: dict[str, Tensor], features: Tensor) -> Tensor:
    """The answers of all clients' heads, (client, sample, class), as batched matrix products."""
    clients = len(next(iter(entries.values())))
    x = features.flatten(1).expand(clients, -1, -1)
    for place, layer in enumerate(head):
        if isinstance(layer, nn.Linear):
            x = torch.baddbmm(
                entries[f"head.{place}.bias"].unsqueeze(1), x, entries[f"head.{place}.weight"].mT
            )
        elif isinstance(layer, nn.ReLU):
            x = x.relu()
    return x


def fisher(job: Job, client: int, net: nn.Module) -> Tensor:
    """Mean over samples of squared gradients, from one pass per batch that keeps each layer's input
    and output gradient.
    """
    net.eval().requires_grad_(False)
    layers, total = [*net.features, net.head], 0.0
    for index in job.parts[client].split(job.batch):
        x, kept = job.x.index_select(0, index), []
        for layer in layers:
            given, x = x, layer(x)
            if isinstance(layer, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
                x = x if x.requires_grad else x.requires_grad_()
                kept.append((layer, given.detach(), x))
        loss = functional.cross_entropy(x, job.y.index_select(0, index), reduction="sum")
        gradients = torch.autograd.grad(loss, [output for _, _, output in kept])
        total += torch.cat(
            [
                piece
                for (layer, given, _), d in zip(kept, gradients, strict=True)
                for piece in squares(layer, given, d)
            ]
        )
    net.requires_grad_(True)
    return total / len(job.parts[client])


def squares(layer: nn.Module, given: Tensor, d: Tensor) -> list[Tensor]:
    """Sums over samples of the squared gradients of a layer's weight and bias."""
    if isinstance(layer, nn.Linear):
        weight, bias = d.square().T @ given.square(), d
    elif isinstance(layer, nn.BatchNorm2d):
        normalised = functional.batch_norm(
            given, layer.running_mean, layer.running_var, eps=layer.eps
        )
        weight, bias = (d * normalised).sum((2, 3)).square().sum(0), d.sum((2, 3))
    else:
        weight, bias = (d.flatten(2) @ patches(layer, given).mT).square_().sum(0), d.sum((2, 3))
    return [weight.flatten(), bias.square().sum(0)]


def patches(layer: nn.Conv2d, given: Tensor) -> Tensor:
    """Return the inputs of a kernel of stride 1 at every position, faster than torch's unfold.

    The shape is (sample, inputs of the kernel, positions).
    """
    (rows, columns), (height, width) = layer.padding, layer.kernel_size
    windows = (
        functional.pad(given, (columns, columns, rows, rows))
        .unfold(2, height, 1)
        .unfold(3, width, 1)
    )
    return windows.permute(0, 1, 4, 5, 2, 3).reshape(len(given), layer.weight[0].numel(), -1)


def contrast(embeddings: Tensor, common: Tensor) -> Tensor:
    """CoRe-Fed, Eq. 6: a diagnostic at the server."""
    units = functional.normalize(embeddings, dim=1)
    near = units @ functional.normalize(common, dim=0) / 0.07
    others = (units @ units.T / 0.07).fill_diagonal_(-torch.inf)
    return torch.logsumexp(others, 1) - near
