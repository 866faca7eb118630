"""Digests of Python objects in an experiment, so that the name of a run tells them apart."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sized
from types import CodeType
from typing import Any

import numpy as np

from equipoise.data import Dataset

# A data set's facts on which results depend. One that has its default does not change the digest.
FACTS = (
    "part",
    "site",
    "site_names",
    "columns",
    "codes",
    "schema",
    "keeps_parts",
    "attributes",
)
ADDRESS = " at 0x"  # in the default text of an object


def dataset_digest(dataset: Dataset) -> str:
    """Return a digest of samples, and of the facts about them that results depend on.

    Args:
        dataset: The data set.
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in (dataset.x, dataset.y):
        digest.update(tensor.contiguous().numpy().data)
    for fact in _facts(dataset):
        digest.update(fact)
    return digest.hexdigest()


def _facts(dataset: Dataset) -> Iterator[bytes]:
    """Yield the facts that do not follow from the samples."""
    classes = int(dataset.y.max()) + 1 if dataset.task.classifies and len(dataset.y) else 1
    kind = "classification" if dataset.task.classifies else "regression"
    if (dataset.task.kind, dataset.task.outputs) != (kind, classes):
        yield f"task={dataset.task.kind} {dataset.task.outputs}".encode()
    for name in FACTS:
        value = getattr(dataset, name)
        is_set = len(value) > 0 if isinstance(value, Sized) else bool(value)
        if is_set:
            yield f"{name}=".encode()
            yield _bytes_of(value)


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return repr(value.tolist()).encode()
        return f"{value.dtype.str}:".encode() + bytes(value.tobytes())
    if isinstance(value, Mapping):
        return b"".join(f"{key}:".encode() + _bytes_of(cells) for key, cells in value.items())
    return repr(value).encode()


def model_identities(architectures: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> identity of the models that are Python objects.

    Args:
        architectures: Name -> specification of a model; a mapping may give clients their own.
    """
    identities: dict[str, str] = {}
    for name, spec in architectures.items():
        if isinstance(spec, Mapping):
            own = spec.get("clients", {})
            identities |= model_identities({f"{name}.{client}": own[client] for client in own})
        elif not isinstance(spec, str):
            identities[name] = _identity(spec)
    return identities


def _identity(model: Any) -> str:
    """Return text that tells a model from others.

    Functions of the same name, such as two lambdas, differ in their code or in the values that it
    refers to.
    """
    if isinstance(model, functools.partial):
        return f"{_identity(model.func)} {model.args} {model.keywords}"
    name = str(getattr(model, "__qualname__", repr(model)))
    functions = [model]
    if inspect.isclass(model):
        functions = list(vars(model).values())
    texts = [_function_text(function) for function in functions if inspect.isfunction(function)]
    if not texts:
        return name
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=8)
    return f"{name} {digest.hexdigest()}"


def _function_text(function: Any) -> str:
    try:
        variables = inspect.getclosurevars(function)
        values = {**variables.globals, **variables.nonlocals}
    except ValueError:  # a variable that has no value yet
        values = {}
    named = [f"{key}={_value_text(value)}" for key, value in sorted(values.items())]
    defaults = [_value_text(value) for value in function.__defaults__ or ()]
    return repr((_code_text(function.__code__), named, defaults))


def _value_text(value: Any) -> str:
    """Return text that is the same in every process."""
    if isinstance(value, (set, frozenset)):  # its order differs between processes
        return f"{type(value).__name__} {sorted(map(_value_text, value))}"
    if isinstance(value, Mapping):
        return repr({_value_text(key): _value_text(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} {[_value_text(item) for item in value]}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    text = str(name or repr(value))
    return type(value).__qualname__ if ADDRESS in text else text


def _code_text(code: CodeType) -> str:
    """Return the content of a function's code, without the place where it is written."""
    constants = []
    for value in code.co_consts:
        if isinstance(value, CodeType):
            constants.append(_code_text(value))
        else:
            constants.append(_value_text(value))
    return repr((code.co_code.hex(), code.co_names, constants))
