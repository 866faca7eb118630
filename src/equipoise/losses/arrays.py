"""Arrays or tensors in, the same kind out: what the pure functions share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Values = TypeVar("Values", NDArray[Any], torch.Tensor)
Numbers = NDArray[Any] | torch.Tensor | Sequence[Any] | float


def float64(values: Numbers) -> NDArray[np.float64]:
    """The values as a float64 array.

    >>> float64(torch.tensor([1, 2]))
    array([1., 2.])
    """
    return np.asarray(values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values, dtype=np.float64)


def tensor(values: Numbers) -> torch.Tensor:
    """The values as a tensor; a tensor stays itself, with its graph.

    >>> tensor([0.5]).dtype
    torch.float64
    """
    return values if isinstance(values, torch.Tensor) else torch.from_numpy(np.asarray(values))


def like(result: NDArray[Any] | torch.Tensor, given: Values) -> Values:
    """The result in the kind of what was given: a tensor for a tensor, an array for anything else.

    >>> like(torch.ones(2), np.zeros(3))
    array([1., 1.], dtype=float32)
    """
    if isinstance(given, torch.Tensor):
        return result if isinstance(result, torch.Tensor) else torch.from_numpy(result).to(given.device)
    return result.detach().cpu().numpy() if isinstance(result, torch.Tensor) else result
