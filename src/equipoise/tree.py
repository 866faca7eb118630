"""Trees: the parameters of a model as plain data, with the arithmetic that methods are written in.

A tree is a read-only mapping from parameter name to tensor that knows which of its entries are
trained and which are not (`rest`: batch-norm statistics, frozen parameters). Differences,
multiples, norms and products cover the trained entries only, so a counter of batches can never
enter a norm or a cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

# Positions of a cohort that are summed together. Fixed, so that sums do not depend on how the work
# was distributed.
BLOCK = 16
_GRAM_ELEMENTS = 8_000_000  # of a stacked block in float64: 64 MB


class Tree(Mapping[str, Tensor]):
    """The parameters of a model by name.

    Args:
        tensors: The tensors by name.
        model: The name of the model.
        untrained: The names of the entries that are not trained.
    """

    __slots__ = ("_bytes", "_tensors", "model", "plain", "untrained")

    def __init__(
        self, tensors: Mapping[str, Tensor], model: str = "model", untrained: Iterable[str] = ()
    ) -> None:
        self._tensors = tensors
        self.model = model
        self.untrained = frozenset(untrained)
        self._bytes: int | None = None
        # True once its tensors are known to be fit to travel, since one tree is put into many
        # records.
        self.plain = False

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"Tree({self.model!r}, {len(self)} entries, {self.count():,} trained numbers)"

    @property
    def trained(self) -> list[str]:
        """The names of the trained entries, in order."""
        return [name for name in self._tensors if name not in self.untrained]

    @property
    def params(self) -> Tree:
        """The trained entries alone."""
        return self if not self.untrained else self._keep(lambda name: name not in self.untrained)

    @property
    def rest(self) -> Tree:
        """The entries that are not trained: buffers and frozen parameters."""
        return self._keep(lambda name: name in self.untrained)

    def _keep(self, condition: Callable[[str], bool]) -> Tree:
        tensors = {name: self[name] for name in self if condition(name)}
        return Tree(tensors, self.model, self.untrained & tensors.keys())

    def _map(self, function: Callable[[str], Tensor]) -> Tree:
        return Tree({name: function(name) for name in self.trained}, self.model)

    def __sub__(self, other: Tree) -> Tree:
        return self._map(lambda name: self[name] - _entry(other, name))

    def __neg__(self) -> Tree:
        return self._map(lambda name: -self[name])

    __array_ufunc__ = None  # a number of numpy's times a tree asks the tree

    def __mul__(self, factor: float) -> Tree:
        if isinstance(factor, Mapping):
            raise TypeError(
                "tree * tree is not defined: for entrywise products use a.apply(torch.mul, b), for "
                "the inner product a.dot(b)"
            )
        return self._map(lambda name: self[name] * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Tree:
        return self._map(lambda name: self[name] / divisor)

    def __add__(self, step: Tree) -> Tree:
        """This tree moved by a step; its untrained entries stay."""
        tensors = {
            name: self[name] if name in self.untrained else self[name] + _entry(step, name)
            for name in self
        }
        return Tree(tensors, self.model, self.untrained)

    def with_rest(self, rest: Tree) -> Tree:
        """This tree's trained entries with the untrained ones of another."""
        return Tree(
            {
                **{name: self[name] for name in self.trained},
                **{name: rest[name] for name in rest.untrained},
            },
            self.model,
            rest.untrained,
        )

    def apply(self, function: Callable[..., Tensor], *others: Tree) -> Tree:
        """Return a tree with a function of each trained entry.

        Args:
            function: A function of a tensor, and of one tensor of each other tree.
            others: Trees with the same entries, such as masks.
        """
        return self._map(
            lambda name: function(self[name], *(_entry(other, name) for other in others))
        )

    def with_flat(self, numbers: Tensor) -> Tree:
        """Return the trained entries with other numbers; the inverse of `flat`.

        Args:
            numbers: The numbers in one vector, in the order of `flat`.

        Raises:
            ValueError: If there are more or fewer numbers than the tree has.
        """
        if numbers.shape != (self.count(),):
            raise ValueError(
                f"expected {self.count()} numbers in one vector, as flat() gives them, "
                f"got shape {tuple(numbers.shape)}"
            )
        names = self.trained
        parts = torch.split(numbers, [self[name].numel() for name in names])
        tensors = {}
        for name, part in zip(names, parts, strict=True):
            tensors[name] = part.reshape(self[name].shape).to(self[name].dtype)
        return Tree(tensors, self.model)

    def flat(self) -> Tensor:
        """Return all trained numbers in one float64 vector."""
        parts = [self[name].reshape(-1).double() for name in self.trained]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def count(self) -> int:
        """Return the number of trained numbers."""
        return sum(self[name].numel() for name in self.trained)

    def bytes(self) -> int:
        """Return its size, computed once, since one tree is sent to many clients."""
        if self._bytes is None:
            self._bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.values())
        return self._bytes

    def dot(self, other: Tree) -> float:
        """Return the inner product over the trained entries, in float64."""
        total = 0.0
        for name in self.trained:
            own = self[name].reshape(-1).double()
            total += float(torch.dot(own, _entry(other, name).reshape(-1).double()))
        return total

    def norm(self) -> float:
        """Return the Euclidean norm of the trained entries."""
        return float(np.sqrt(self.dot(self)))

    def held(self) -> Tree:
        """Return the tree with all tensors in memory, so that its file can be removed."""
        return self.clone() if isinstance(self._tensors, FileTensors) else self

    def clone(self) -> Tree:
        """Return a copy in memory of its own."""
        return Tree(
            {
                name: tensor.detach().clone(memory_format=torch.contiguous_format)
                for name, tensor in self.items()
            },
            self.model,
            self.untrained,
        )


class FileTensors(Mapping[str, Tensor]):
    """Tensors of a safetensors file, read one at a time when they are used.

    So a thousand models can be summed in the memory of a few.

    Args:
        path: The file.
        keys: The key in the file of each entry.
    """

    def __init__(self, path: Path, keys: Mapping[str, str]) -> None:
        self.path = path
        self.keys_in_file = dict(keys)

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self.path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(self.keys_in_file[name])
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_in_file)

    def __len__(self) -> int:
        return len(self.keys_in_file)


def _entry(tree: Tree, name: str) -> Tensor:
    """Return the entry of a tree that is combined with another one."""
    try:
        return tree[name]
    except KeyError:
        raise ValueError(
            f"expected trees with the same entries, got one without {name!r} ({tree!r}). "
            "Differences and multiples have trained entries only: give them the others with "
            "step.with_rest(model.rest), or mix model.params"
        ) from None


def combine(
    trees: Sequence[Tree | None], coefficients: Sequence[float], divide: float = 1.0
) -> Tree:
    """Return ``sum_k coefficients[k] * trees[k] / divide``, entry by entry in float64.

    Integer entries take the maximum. Positions are summed in blocks of 16, and a missing tree
    (None) leaves its position empty. So the other terms of a result depend neither on the number of
    workers nor on who is missing.

    Args:
        trees: The trees by position.
        coefficients: A coefficient for each position.
        divide: The divisor of the sum.

    Example:
        >>> a, b = Tree({"w": torch.tensor([1.0])}), Tree({"w": torch.tensor([4.0])})
        >>> combine([a, None, b], [1.0, 0.0, 2.0], divide=3.0)["w"]
        tensor([3.])
    """
    first = next(tree for tree in trees if tree is not None)
    tensors: dict[str, Tensor] = {}
    for name in first:
        like = first[name]
        if not like.is_floating_point():
            tensors[name] = torch.stack(
                [_entry(tree, name) for tree in trees if tree is not None]
            ).amax(0)
            continue
        total: Tensor | None = None
        for start in range(0, len(trees), BLOCK):
            block: Tensor | None = None
            for tree, coefficient in zip(
                trees[start : start + BLOCK], coefficients[start : start + BLOCK], strict=True
            ):
                if tree is None or coefficient == 0:
                    continue
                term = _entry(tree, name)
                if block is None:
                    block = term.double().contiguous() * coefficient
                else:
                    block.add_(term, alpha=coefficient)
            if block is not None:
                total = block if total is None else total.add_(block)
        total = torch.zeros_like(like, dtype=torch.float64) if total is None else total
        tensors[name] = (total.div_(divide) if divide != 1 else total).to(like.dtype)
    return Tree(tensors, first.model, first.untrained)


class RunningMean:
    """The mean of trees that are added one after another, in the memory of one.

    Sums run in float64. Integer entries take the maximum, as in `combine`.

    Attributes:
        count: The number of trees so far.

    Example:
        >>> mean = RunningMean()
        >>> for number in (1.0, 4.0, 7.0):
        ...     mean.add(Tree({"w": torch.tensor([number])}))
        >>> mean.tree()["w"]
        tensor([4.])
    """

    def __init__(self) -> None:
        self.count = 0
        self._last = Tree({})
        self._means: dict[str, Tensor] = {}

    def add(self, tree: Tree) -> None:
        """Add a tree with the same entries as those before it."""
        self.count += 1
        self._last = tree
        for name, tensor in tree.items():
            if name not in self._means:
                is_number = tensor.is_floating_point()
                self._means[name] = tensor.double() if is_number else tensor.clone()
            elif tensor.is_floating_point():
                mean = self._means[name]
                mean += (tensor.double() - mean) / self.count
            else:
                self._means[name] = torch.maximum(self._means[name], tensor)

    def tree(self) -> Tree:
        """Return the mean, with the names and types of the trees; at least one was added."""
        tensors = {name: mean.to(self._last[name].dtype) for name, mean in self._means.items()}
        return Tree(tensors, self._last.model, self._last.untrained)


def gram(trees: Sequence[Tree]) -> np.ndarray:
    """Return the matrix of inner products over the trained entries, in float64.

    Example:
        >>> gram([Tree({"w": torch.tensor([1.0, 2.0])}), Tree({"w": torch.tensor([3.0, 0.0])})])
        array([[5., 3.],
               [3., 9.]])
    """
    total = torch.zeros(len(trees), len(trees), dtype=torch.float64)
    width = max(1, _GRAM_ELEMENTS // max(1, len(trees)))
    for name in trees[0].trained if trees else []:
        rows = [_entry(tree, name).reshape(-1) for tree in trees]
        for start in range(0, rows[0].numel(), width):
            block = torch.stack([row[start : start + width] for row in rows]).double()
            total += block @ block.T
    return total.numpy()
