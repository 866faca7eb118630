"""Models by name, or by "package.module:attribute" for a user's own."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from pydantic import ValidationError, validate_call
from torch import nn

from equipoise.models.basic import cnn, linear, mlp, simple_cnn
from equipoise.models.gru import gru
from equipoise.models.network import Network, trial, wrap
from equipoise.models.papers import (
    bench_cnn,
    corefed_cnn,
    fedave_cifar,
    fedave_mnist,
    lenet,
    moon_cnn,
    private_cnn,
    proxy_cnn,
)
from equipoise.models.resnet import resnet10, resnet12
from equipoise.task import Task
from equipoise.validation.imports import OWN, Imports
from equipoise.validation.limits import LAYERS, PARAMETERS, check_limit
from equipoise.validation.names import nearest, quoted
from equipoise.validation.registry import Registry
from equipoise.validation.settings import plain_reason

_FACTORIES: list[Callable[..., Network]] = [
    *(
        mlp,
        linear,
        cnn,
        simple_cnn,
        corefed_cnn,
        fedave_mnist,
        fedave_cifar,
        lenet,
        bench_cnn,
        moon_cnn,
        private_cnn,
        proxy_cnn,
    ),
    *(resnet10, resnet12, gru),
]
ARCHITECTURES = {factory.__name__: factory for factory in _FACTORIES}


def _load(name: str, path: str, imports: Imports) -> Callable[..., nn.Module]:
    factory: Callable[..., nn.Module] = imports.load(
        path, "model", nn.Module, makes="torch.nn.Module"
    )
    return factory


REGISTRY: Registry[Callable[..., nn.Module]] = Registry(
    "model", "equipoise.models", ARCHITECTURES, _load
)
AUTO = "auto"  # in place of a name: the one that the data call for
SURELY_SMALL = 50_000_000  # networks whose options lead to less than this are not counted
LEAST_PIXELS = 16  # height and width of images from which on `auto` is a network of convolutions


def chosen(shape: tuple[int, ...]) -> str:
    """Return the model that "auto" stands for.

    It is a small CNN for images, and an MLP for rows and for images of a few pixels.

    >>> chosen((1, 28, 28)), chosen((1, 8, 8)), chosen((13,))
    ('cnn', 'mlp', 'mlp')
    """
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= LEAST_PIXELS else "mlp"


def names() -> list[str]:
    """Return the names that `build` knows."""
    return REGISTRY.names()


def describe(name: str) -> dict[str, Any]:
    """Return the summary of a model and its options with their defaults.

    >>> describe("mlp")["options"]
    {'hidden': (200, 200)}
    """
    factory = REGISTRY.find(name)
    return {"name": name, "summary": inspect.getdoc(factory), "options": _options(factory)}


@cache
def _validated(name: str) -> Callable[..., Network]:
    """Return a built-in model that checks its options; pydantic takes long to make it."""
    return validate_call(ARCHITECTURES[name])


def build(spec: str | Mapping[str, Any], task: Task, imports: Imports = OWN) -> Network:
    """Return the network that a specification names, for a task.

    Args:
        spec: A name, a mapping with `name` and options, such as {"name": "mlp", "hidden": [64]}, or
            "package.module:attribute".
        task: The task.
        imports: The packages that may be imported.

    Raises:
        UnknownName: If there is no such model or option.
        ValueError: If the model does not fit the task.

    >>> from equipoise.task import Task
    >>> build({"name": "mlp", "hidden": [8]}, Task("classification", (1, 4, 4), 3)).head
    Linear(in_features=8, out_features=3, bias=True)
    """
    options = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = str(options.pop("name", ""))
    name = chosen(task.shape) if name == AUTO else name
    if ":" not in name and name not in names():
        raise nearest("model", name, [*names(), AUTO])
    if name not in ARCHITECTURES:
        return _own(name, options, task, imports)
    factory = ARCHITECTURES[name]
    for option in options:
        _known(option, list(_options(factory)), f"option of model {name!r}")
    try:
        _check_size(factory, task, options)
        return _validated(name)(task, **options)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            option = ".".join(map(str, problem["loc"]))
            problems.append(
                f"{option} = {quoted(problem['input'])}: {plain_reason(problem['msg'])}"
            )
        wrong = "; ".join(problems)
        raise ValueError(f"model {name!r}: {wrong}; the defaults are {_options(factory)}") from None
    except (
        ValueError,
        RuntimeError,
        OverflowError,
        MemoryError,
    ) as error:  # sizes that cannot be, or that no memory holds
        raise ValueError(f"model {name!r}: {error}") from error


def _check_size(factory: Callable[..., nn.Module], task: Task, options: Mapping[str, Any]) -> None:
    """Refuse a network of absurd size before memory is allocated: its file may come from anyone."""
    widths: list[int] = []
    for option, value in {**_options(factory), **options}.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        check_limit(LAYERS, len(values), f"layers in {option}")
        widths += [width for width in values if type(width) is int and width > 0]
    for width in widths:
        check_limit(
            PARAMETERS, width, "parameters"
        )  # a layer has at least one for each of its units
    total = sum(widths) + task.outputs
    # Counting takes a second of imports for convolutions, which small networks do without.
    if total**2 + total * math.prod(task.shape) <= SURELY_SMALL:
        return
    with torch.device("meta"):  # tensors with a shape and without memory
        network = validate_call(factory)(task, **options)
    count = sum(parameter.numel() for parameter in network.parameters())
    check_limit(PARAMETERS, count, "parameters")


def _options(factory: Callable[..., nn.Module]) -> dict[str, Any]:
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _known(name: str, valid: list[str], kind: str) -> str:
    if name not in valid:
        raise nearest(kind, name, valid)
    return name


def _own(path: str, options: dict[str, Any], task: Task, imports: Imports) -> Network:
    """Return a user's class or factory as a network, tried on one sample.

    It is called with the task if it takes an argument.
    """
    factory = REGISTRY.find(path, imports)
    try:
        attribute = [task] if _wants_task(factory, options) else []
        inspect.signature(factory).bind(*attribute, **options)
    except (TypeError, ValueError) as error:  # no signature, or other options
        raise ValueError(
            f"model {path!r} cannot be made with the options {quoted(options)}: {error}"
        ) from None
    module = factory(*attribute, **options)
    outputs = _tried(module, task)
    if not isinstance(outputs, torch.Tensor) or outputs.shape != (1, task.outputs):
        came = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else outputs
        raise ValueError(
            f"model {path!r} has to give (1, {task.outputs}) outputs for one sample of shape "
            f"{task.shape}; it gave {came}"
        )
    network = wrap(module)
    parts = _tried(network, task)
    if (
        not isinstance(parts, torch.Tensor)
        or parts.shape != outputs.shape
        or not torch.allclose(outputs, parts, equal_nan=True)
    ):
        raise ValueError(
            f"model {path!r} has `features` and `head`, but its forward is not head(features(x)); "
            "move what happens in between into one of them (torch.nn.Flatten, say), or rename one"
        )
    return network


def _tried(module: object, task: Task) -> torch.Tensor | str:
    """Return the outputs for one sample, or explain why there are none."""
    if not isinstance(module, nn.Module):
        return f"none: it made a {type(module).__name__}, not a torch.nn.Module"
    try:
        return trial(module, task.shape)
    except RuntimeError as error:
        return f"an error: {error}"


def _wants_task(factory: Callable[..., Any], options: dict[str, Any]) -> bool:
    first = next(iter(inspect.signature(factory).parameters.values()), None)
    if (
        first is None
        or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
        or first.name in options
    ):
        return False
    return first.default is first.empty or first.name == "task"
