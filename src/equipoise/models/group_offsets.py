"""A network whose outputs are shifted by the group of a sample, such as a patient's sex."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .network import Network, wrap


class GroupOffsets(Network):
    """A network with offsets of its outputs for each group of samples.

    The group is no input of the network. Whoever predicts adds the offsets with `adjusted`.

    Args:
        net: The network.
        column: The column by which samples are grouped.
        groups: The names of the groups.
        offsets: What is added to the outputs of each group, shape (groups, outputs).

    >>> net = GroupOffsets(nn.Identity(), "sex", ["f", "m"], torch.tensor([[0.0, 1.0], [0.0, 2.0]]))
    >>> net.adjusted(torch.zeros(3, 2), ["m", "f", "unknown"]).tolist()
    [[0.0, 2.0], [0.0, 1.0], [0.0, 0.0]]
    """

    offsets: Tensor

    def __init__(self, net: nn.Module, column: str, groups: Sequence[str], offsets: Tensor) -> None:
        own = wrap(net)
        super().__init__(own.features, own.head)
        self.column = column
        self.groups = tuple(groups)
        self.register_buffer("offsets", offsets)

    def adjusted(self, outputs: Tensor, names: Sequence[str]) -> Tensor:
        """Return outputs with the offsets of each sample's group.

        Args:
            outputs: The outputs of the network.
            names: The group of each sample; an unknown group has no offset.
        """
        position = {name: index for index, name in enumerate(self.groups)}
        rows = np.array([position.get(name, len(self.groups)) for name in names], np.int64)
        none = torch.zeros(1, self.offsets.shape[1], dtype=self.offsets.dtype)
        table = torch.cat([self.offsets.cpu(), none])
        return outputs + table[torch.from_numpy(rows)].to(outputs.dtype)
