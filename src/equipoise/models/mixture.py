"""A mixture of experts as one network: it is loaded, measured, exported and asked for predictions like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from equipoise.models.network import Network


class Mixture(Network):
    """log sum_j w_j p_j(y | x), where expert j gives softmax(logits of its network + its offsets); experts may share a network's pass.

    >>> linear = lambda: nn.Linear(1, 2, bias=False)
    >>> mixture = Mixture({"plain": linear, "moved": linear}, {"a": "plain", "b": "plain", "c": "moved"}, 2)
    >>> list(mixture.state_dict())
    ['features.plain.weight', 'features.moved.weight', 'head.weights', 'head.offsets']
    """

    features: Networks
    head: Head

    def __init__(self, networks: Mapping[str, Callable[[], nn.Module]], experts: Mapping[str, str], classes: int) -> None:
        """Networks by name, and for each expert the name of its network."""
        names = list(networks)
        super().__init__(Networks(networks), Head([names.index(network) for network in experts.values()], classes))
        self.experts = list(experts)

    def hold(self, networks: Mapping[str, nn.Module], weights: Tensor, offsets: Mapping[str, Tensor]) -> None:
        """Take on the networks' parameters, the experts' weights, and the offsets of those that have some."""
        for name, given in networks.items():
            self.features[name].load_state_dict(given.state_dict())
        self.head.weights.copy_(weights)
        self.head.offsets.zero_()
        for expert, added in offsets.items():
            self.head.offsets[self.experts.index(expert)] = added


class Networks(nn.ModuleDict):
    """The outputs of several networks for the same samples: (samples, networks, classes)."""

    def __init__(self, networks: Mapping[str, Callable[[], nn.Module]]) -> None:
        super().__init__({name: build() for name, build in networks.items()})

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.values()], 1)


class Head(nn.Module):
    """From the networks' outputs to the logarithm of the mixture's probabilities; linear in probabilities, not in logits."""

    weights: Tensor
    offsets: Tensor

    def __init__(self, sources: Sequence[int], classes: int) -> None:
        super().__init__()
        self.sources = list(sources)  # for each expert the place of its network
        self.register_buffer("weights", torch.full((len(sources),), 1 / len(sources)))
        self.register_buffer("offsets", torch.zeros(len(sources), classes))

    def forward(self, outputs: Tensor) -> Tensor:
        logs = (outputs[:, self.sources] + self.offsets).log_softmax(-1)
        return (logs + self.weights.log()[:, None]).logsumexp(1)
