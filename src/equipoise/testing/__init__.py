"""Checks that every method must pass, run by `check_method(MyMethod)`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from equipoise.data import from_sites
from equipoise.experiment import Experiment
from equipoise.method import Method
from equipoise.session import job_of
from equipoise.simulate import Simulation
from equipoise.testing.checks import CHECKS, Case
from equipoise.testing.small import settings, sites
from equipoise.validation.names import nearest

__all__ = ["CHECKS", "ContractBroken", "Result", "check_method"]

# The second has convolutions, and batch norm unless the method never trains.
NETWORKS = ("mlp", "cnn")


@dataclass(frozen=True)
class Result:
    """The result of one check on one network.

    Attributes:
        check: The name of the check.
        network: The name of the network.
        outcome: "passed", "failed" or "skipped".
        reason: Why it failed or was skipped.
        error: The exception that was raised, with its traceback.
    """

    check: str
    network: str
    outcome: Literal["passed", "failed", "skipped"]
    reason: str = ""
    error: Exception | None = None

    def __str__(self) -> str:
        text = f"{self.outcome} {self.check} ({self.network})"
        return f"{text}: {self.reason}" if self.reason else text


class ContractBroken(AssertionError):
    """Raised if at least one check failed, or if all were skipped.

    Attributes:
        results: The results of all checks.
    """

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results


def check_method(
    method: Method | type[Method],
    *,
    checks: Iterable[str] = tuple(CHECKS),
    networks: Iterable[str] = NETWORKS,
    tolerance: float = 2e-4,
    raise_errors: bool = True,
    on_result: Callable[[Result], object] | None = None,
) -> list[Result]:
    """Run every check of the contract on a method.

    Each check trains a few rounds on sixty small images of three classes. A network that the
    method refuses is skipped with its reason.

    Args:
        method: A class, or a method with parameters.
        checks: Names of checks, of `CHECKS`.
        networks: Names of networks, "mlp" and "cnn".
        tolerance: How far another order of clients may move a number. Adam needs more than plain
            SGD.
        raise_errors: Raise `ContractBroken` if a check fails.
        on_result: Called after each check; ``on_result=print`` shows the results as they come.

    Returns:
        One result per check and network.

    Raises:
        ContractBroken: If a check failed, or if all were skipped.
        UnknownName: If there is no such check or network.
    """
    made = _made(method)
    checks = list(checks)
    networks = list(networks)
    _require_known("check", checks, CHECKS)
    _require_known("network of the checks", networks, NETWORKS)
    results = []
    with tempfile.TemporaryDirectory(prefix="equipoise-check-") as scratch:
        for network in networks:
            refusal = _refusal(made, network, Path(scratch))
            learnt: dict[int, dict[str, Any]] = {}
            for name in checks:
                case = Case(made, network, Path(scratch) / network / name, tolerance, learnt)
                if refusal:
                    result = Result(name, network, "skipped", refusal)
                else:
                    result = _result(name, case)
                results.append(result)
                if on_result is not None:
                    on_result(result)
    if raise_errors:
        _raise_if_broken(made, results)
    return results


def _require_known(kind: str, names: list[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise nearest(kind, name, list(known))


def _raise_if_broken(method: Method, results: list[Result]) -> None:
    """Raise `ContractBroken` if a check failed or none was possible."""
    failed = [result for result in results if result.outcome == "failed"]
    if failed:
        lines = "\n".join(map(str, failed))
        message = f"{method.title} fails {len(failed)} of {len(results)} checks:\n{lines}"
        raise ContractBroken(message, results) from failed[0].error
    if not any(result.outcome == "passed" for result in results):
        reasons = dict.fromkeys(result.reason for result in results)
        reason = "; ".join(reasons) or "no checks were selected"
        raise ContractBroken(f"no check of {method.title} could be made: {reason}", results)


def _made(method: Method | type[Method]) -> Method:
    """Return a method; a class with its default parameters."""
    if isinstance(method, Method):
        return method
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"expected a class or an object of Method, got {method!r}")
    try:
        return method()
    except TypeError as error:
        name = method.__name__
        raise TypeError(
            f"{name} cannot be made without parameters ({error}); check one that has them: "
            f"check_method({name}(...))"
        ) from None


def _refusal(method: Method, network: str, folder: Path) -> str:
    """Return the reason for which a method refuses a network before round 1, or ""."""
    experiment = Experiment(**settings(method, network), dataset=from_sites(sites()))
    try:
        with Simulation(experiment) as simulation:
            simulation.open(job_of(experiment, "check"), folder / f"{network} opened")
    except ValueError as error:
        return str(error)
    except Exception:
        # An error in the method, not a refusal: the checks will report it by name.
        return ""
    return ""


def _result(name: str, case: Case) -> Result:
    """Return the result of one check."""
    case.folder.mkdir(parents=True)
    try:
        CHECKS[name](case)
    except AssertionError as error:
        return Result(name, case.network, "failed", str(error), error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Result(name, case.network, "failed", reason, error)
    return Result(name, case.network, "passed")
