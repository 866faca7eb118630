"""Whether a method keeps what every method must: `check_method(MyMethod)`, as scikit-learn's `check_estimator`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from equipoise.data import from_sites
from equipoise.experiment import Experiment
from equipoise.method import Method
from equipoise.simulate import Simulation, job_of
from equipoise.testing.checks import CHECKS, Case
from equipoise.testing.small import settings, sites
from equipoise.validation.names import nearest

__all__ = ["CHECKS", "ContractBroken", "Result", "check_method"]

NETWORKS = (
    "mlp",
    "cnn",
)  # the second has convolutions, and batch norm unless the method never trains


@dataclass(frozen=True)
class Result:
    """What came of one check on one network; `error` is what was raised, with its traceback."""

    check: str
    network: str
    outcome: Literal["passed", "failed", "skipped"]
    reason: str = ""
    error: Exception | None = None

    def __str__(self) -> str:
        return f"{self.outcome} {self.check} ({self.network})" + (
            f": {self.reason}" if self.reason else ""
        )


class ContractBroken(AssertionError):
    """At least one check failed, or none could be made; `results` are all of them."""

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
    """Run every check of the contract on a method, a class or one with parameters, and say of each whether it passed, failed or was skipped, and why.

    Each trains a few rounds on sixty small images of three classes. A network that the method refuses is skipped with its reason. Unless
    `raise_errors` is False, ContractBroken names every check that failed, or says that all were skipped. `on_result` is called after each check
    (`on_result=print` shows them as they come). `tolerance`: how far another order of clients may move a number; Adam's steps need more
    than plain SGD's.
    """
    made, checks, networks = _made(method), list(checks), list(networks)
    for known, given, what in (
        (CHECKS, checks, "check"),
        (NETWORKS, networks, "network of the checks"),
    ):
        for name in given:
            if name not in known:
                raise nearest(what, name, list(known))
    results = []
    with tempfile.TemporaryDirectory(prefix="equipoise-check-") as scratch:
        for network in networks:
            refusal = _refusal(made, network, Path(scratch))
            for name in checks:
                case = Case(made, network, Path(scratch) / network / name, tolerance)
                results.append(
                    Result(name, network, "skipped", refusal) if refusal else _result(name, case)
                )
                if on_result is not None:
                    on_result(results[-1])
    failed = [result for result in results if result.outcome == "failed"]
    if raise_errors and failed:
        first = next(result.error for result in failed)
        listed = "\n".join(map(str, failed))
        raise ContractBroken(
            f"{made.title} fails {len(failed)} of {len(results)} checks:\n{listed}", results
        ) from first
    if raise_errors and not any(result.outcome == "passed" for result in results):
        reasons = dict.fromkeys(result.reason for result in results)
        raise ContractBroken(
            f"no check of {made.title} could be made: {'; '.join(reasons) or 'none was asked for'}",
            results,
        )
    return results


def _made(method: Method | type[Method]) -> Method:
    if isinstance(method, Method):
        return method
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"expected a class or an object of Method, got {method!r}")
    try:
        return method()
    except TypeError as error:
        name = method.__name__
        raise TypeError(
            f"{name} cannot be made without parameters ({error}); check one that has them: check_method({name}(...))"
        ) from None


def _refusal(method: Method, network: str, folder: Path) -> str:
    """The sentence with which the method refuses a network or the data before round 1; empty: it does not."""
    wanted = Experiment(**settings(method, network), dataset=from_sites(sites()))
    try:
        with Simulation(wanted) as simulation:
            simulation.open(job_of(wanted, "check"), folder / f"{network} opened")
    except ValueError as error:
        return str(error)
    # a mistake, not a refusal: every check will meet it and report it by its name
    except Exception:
        return ""
    return ""


def _result(name: str, case: Case) -> Result:
    case.folder.mkdir(parents=True)
    try:
        CHECKS[name](case)
    except Exception as error:
        reason = (
            str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        )
        return Result(name, case.network, "failed", reason, error)
    return Result(name, case.network, "passed")
