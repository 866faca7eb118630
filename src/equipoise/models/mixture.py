"""A mixture of experts as one network, which can be evaluated and exported like any other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ..task import Task
from .network import Network


class Mixture(Network):
    """The mixture log sum_j w_j p_j(y | x).

    Expert j gives softmax(outputs of its network + its offsets). In regression, and of the log
    risks of Cox models, the mixture is sum_j w_j (output + offset). Of hazards it has the mixed
    survival probabilities sum_j w_j S_j(t | x). Experts may share one network.

    Args:
        networks: Networks by name.
        experts: The name of the network of each expert.
        weights: The weight of each expert; equal weights by default.
        offsets: The offsets of experts that have some.
        task: The task.

    >>> plain, other = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)
    >>> task = Task("classification", (1,), 2)
    >>> experts = {"a": "plain", "b": "plain", "c": "other"}
    >>> networks = {"plain": plain, "other": other}
    >>> weights = torch.tensor([0.5, 0.25, 0.25])
    >>> mixture = Mixture(networks, experts, weights, {"b": torch.ones(2)}, task)
    >>> list(mixture.state_dict())
    ['features.plain.weight', 'features.other.weight', 'head.weights', 'head.offsets']
    """

    features: Networks
    head: Head

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        experts: Mapping[str, str],
        weights: Tensor | None,
        offsets: Mapping[str, Tensor | None],
        task: Task,
    ) -> None:
        """Mix experts.

        Args:
            networks: The networks by name.
            experts: The name of the network of each expert.
            weights: The weights of the experts; equal ones by default.
            offsets: What is added to the outputs of an expert.
            task: The task.
        """
        weights = torch.full((len(experts),), 1 / len(experts)) if weights is None else weights
        names, known_offsets = list(networks), [offsets.get(expert) for expert in experts]
        added = torch.stack(
            [
                torch.zeros(task.outputs) if offset is None else offset.float()
                for offset in known_offsets
            ]
        )
        head = Head(
            {expert: names.index(network) for expert, network in experts.items()},
            weights.float(),
            added,
            task,
        )
        super().__init__(
            Networks(dict(networks)),
            head.to(next((p.device for net in networks.values() for p in net.parameters()), "cpu")),
        )


class Networks(nn.ModuleDict):
    """The outputs of several networks for the same samples: (samples, networks, outputs)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all networks."""
        return torch.stack([network(x) for network in self.values()], 1)


class Head(nn.Module):
    """The mixture of the networks' outputs.

    It returns the logarithm of mixed probabilities (not mixed logits), the logits of mixed hazards,
    or for one output the mean.
    """

    weights: Tensor
    offsets: Tensor

    def __init__(
        self, experts: Mapping[str, int], weights: Tensor, offsets: Tensor, task: Task
    ) -> None:
        """Mix experts.

        Args:
            experts: The position of the network of each expert.
            weights: The weights of the experts.
            offsets: What is added to the outputs of each expert.
            task: The task.
        """
        super().__init__()
        self.names, self.sources = list(experts), list(experts.values())
        self.task = task
        self.register_buffer("weights", weights)
        self.register_buffer("offsets", offsets)

    def experts(self, outputs: Tensor) -> Tensor:
        """Return the outputs of each expert: (samples, experts, outputs)."""
        return outputs[:, self.sources] + self.offsets

    def forward(self, outputs: Tensor) -> Tensor:
        """Return the mixture of the networks' outputs."""
        moved = self.experts(outputs)
        if self.task.classifies:
            return (moved.log_softmax(-1) + self.weights.log()[:, None]).logsumexp(1)
        if self.task.survives and self.task.outputs > 1:
            return self._hazards(moved)
        return (self.weights[:, None] * moved).sum(1)

    def _hazards(self, logits: Tensor) -> Tensor:
        """Return the logits of the hazards of the mixture.

        In interval k they are log sum_j w_j S_j,k-1 h_jk - log sum_j w_j S_jk, where S_jk is the
        probability of expert j to survive interval k, and h_jk its hazard.
        """
        survival = logsigmoid(-logits).cumsum(-1) + self.weights.log()[:, None]
        # h_jk S_j,k-1 = S_jk h_jk / (1 - h_jk), and the logit is the log of the last fraction.
        return (survival + logits).logsumexp(1) - survival.logsumexp(1)
