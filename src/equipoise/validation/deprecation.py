"""Old names that keep working for one release."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def renamed_argument(old: str, new: str) -> Callable[[Function], Function]:
    """Let a function accept the old name of an argument, with a warning.

    Args:
        old: The name in the previous release.
        new: The name in the function's signature.

    Returns:
        The decorator.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def accept(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                warnings.warn(
                    f"{function.__name__}({old}=) is now {new}=", DeprecationWarning, stacklevel=2
                )
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(Function, accept)

    return decorate
