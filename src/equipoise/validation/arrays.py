"""Conversion of arrays, lists and tensors, shared by the pure functions."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Values = TypeVar("Values", NDArray[Any], torch.Tensor)
Numbers = ArrayLike | torch.Tensor


def float64(values: Numbers) -> Array:
    """Return values as a float64 array.

    Example:
        >>> float64(torch.tensor([1, 2]))
        array([1., 2.])
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def tensor(values: Numbers) -> torch.Tensor:
    """Return values as a tensor; a tensor stays itself, with its graph.

    Example:
        >>> tensor([0.5]).dtype
        torch.float64
    """
    return values if isinstance(values, torch.Tensor) else torch.from_numpy(np.asarray(values))


def like(result: NDArray[Any] | torch.Tensor, example: Values) -> Values:
    """Return a result as a tensor if an example is one, else as an array.

    Example:
        >>> like(torch.ones(2), np.zeros(3))
        array([1., 1.], dtype=float32)
    """
    if isinstance(example, torch.Tensor):
        if isinstance(result, torch.Tensor):
            return result
        return torch.from_numpy(result).to(example.device)
    return result.detach().cpu().numpy() if isinstance(result, torch.Tensor) else result


def vector(values: Numbers, name: str = "values") -> Array:
    """Return values as a vector; a column of shape (N, 1) counts as one.

    Args:
        values: One number per client, round or seed.
        name: Their name, for the message.

    Raises:
        ValueError: If they have another shape.

    Example:
        >>> vector([[1], [2]]).tolist()
        [1.0, 2.0]
    """
    result = float64(values)
    if result.ndim == 2 and result.shape[1] == 1:
        result = result[:, 0]
    if result.ndim != 1:
        raise ValueError(
            f"{name}: expected one number per entry (shape (N,)), got shape {result.shape}; "
            "pass a flat vector"
        )
    return result


def vectors(
    first: Numbers, second: Numbers, names: tuple[str, str] = ("alone", "together")
) -> tuple[Array, Array]:
    """Return two vectors of equal length.

    Raises:
        ValueError: If their lengths differ.
    """
    a = vector(first, names[0])
    b = vector(second, names[1])
    if len(a) != len(b):
        raise ValueError(
            f"expected {names[0]} and {names[1]} of equal length, got {len(a)} and {len(b)}; "
            "list the same entries in the same order"
        )
    return a, b


def is_constant(values: Array) -> bool:
    """Return True if values are equal up to rounding.

    The mean of equal numbers is not always that number, so their variance is noise, not zero.
    """
    return bool(np.ptp(values) <= 1e-12 * np.max(np.abs(values)))


def ranks(values: Numbers) -> Array:
    """Return ranks from 1 for the smallest; equal values share the mean of their ranks.

    Example:
        >>> ranks([10, 30, 10, 20]).tolist()
        [1.5, 4.0, 1.5, 3.0]
    """
    _, position, count = np.unique(vector(values), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[position], dtype=np.float64)
