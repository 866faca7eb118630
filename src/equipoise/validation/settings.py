"""Sections of a configuration in which true is not the number 1, and 1_0 not the number 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationInfo, field_validator

from equipoise.validation.names import quoted


class Settings(BaseModel):
    """A section of a configuration; pydantic alone would read true as 1, and 1_0 as 10."""

    @field_validator("*", mode="before")
    @classmethod
    def _only_plain_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        check_numbers(value, field.annotation)
        return value


def plain_reason(message: str) -> str:
    """Return a reason of pydantic in the words of our own messages.

    >>> plain_reason("Input should be a valid integer, unable to parse string as an integer")
    'expected an integer'
    >>> plain_reason("Input should be greater than 0")
    'expected a value greater than 0'
    >>> plain_reason("Value error, expected one seed")
    'expected one seed'
    """
    start = "Input should be "
    if not message.startswith(start):
        return message.removeprefix("Value error, ")
    expected = message.removeprefix(start).partition(", unable to")[0]
    expected = expected.replace("a valid integer", "an integer").replace("a valid ", "a ")
    if expected.startswith(("greater", "less")):
        expected = f"a value {expected}"
    return f"expected {expected}"


def check_numbers(value: Any, hint: Any) -> None:
    """Raise an error if a value is true, false or text such as 1_0 where numbers are expected.

    >>> check_numbers(True, int | None)
    Traceback (most recent call last):
    ValueError: expected a number, got true; write the number itself
    """
    kinds = _kinds(hint)
    if bool in kinds or not kinds & {int, float}:
        return
    for number in _elements(value):
        if isinstance(number, bool):
            raise ValueError(
                f"expected a number, got {str(number).lower()}; write the number itself"
            )
        if isinstance(number, str) and "_" in number and str not in kinds:
            raise ValueError(f"expected a number, got {quoted(number)}; write it without _")


def _elements(value: Any) -> Sequence[Any]:
    """Return the values of a mapping, the elements of a sequence, or the value itself."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    return [value]


def _kinds(hint: Any) -> set[Any]:
    """Return the types of which a type hint is made."""
    kinds: set[Any] = {hint} if isinstance(hint, type) else set()
    for argument in get_args(hint):
        kinds |= _kinds(argument)
    return kinds
