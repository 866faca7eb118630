"""Code that a configuration names as "package.module:attribute", and who may name it.

What a user types on the command line or gives in Python is the user's own. What a file names (an experiment, the folder of a run) is imported
only from packages that the user allowed, or that announce an entry point of one of the GROUPS.
The permission never comes from a file; it travels with the job to our own processes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

import yaml

from equipoise.validation.names import UnknownName, nearest, quoted

# Entry-point groups, one per kind of thing that a package outside can add.
GROUPS = (
    "equipoise.methods",
    "equipoise.models",
    "equipoise.metrics",
    "equipoise.datasets",
    "equipoise.partitions",
    "equipoise.losses",
)


class NotAllowed(ValueError):
    """A file names code that the user did not allow."""


class FromFile(dict[str, Any]):
    """A configuration that a file holds; `typed` are names that the user put into it."""

    typed: frozenset[str] = frozenset()

    def changed(self, values: Mapping[str, Any], typed: Iterable[Any] = ()) -> FromFile:
        """The same file with other values, and with names that the user gave."""
        result = FromFile(values)
        result.typed = self.typed | named(list(typed))
        return result


yaml.SafeDumper.add_representer(FromFile, yaml.SafeDumper.represent_dict)


@dataclass(frozen=True)
class Imports:
    """What may be imported: everything, or these packages and these exact names."""

    packages: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    everything: bool = False

    def with_names(self, *given: Any) -> Imports:
        """With the names in something that the user gave."""
        return replace(self, names=self.names | named(given))

    def __or__(self, other: Imports) -> Imports:
        return Imports(
            self.packages | other.packages,
            self.names | other.names,
            self.everything or other.everything,
        )

    def check(self, name: str, what: str) -> None:
        """Refuse a name that may not be imported; nothing is imported here."""
        module, _, attribute = name.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
            raise UnknownName(
                f"unknown {what} {quoted(name)}: expected a name of ours, or package.module:name for one of yours"
            )
        if not self._is_own(name) and not self._allows(module):
            package = module.partition(".")[0]
            raise NotAllowed(
                f"{quoted(name)} is named by a file, and code that a file names runs only if you allow its package; "
                f"if you trust it, add --allow-import {package} (in Python allow_imports=[{package!r}])"
            )

    def load(
        self, name: str, what: str, base: type, makes: str = "", instance: bool = False
    ) -> Any:
        """Import what a name stands for.

        Args:
            name: "package.module:attribute".
            what: the kind of thing, for error messages.
            base: a subclass of it is accepted.
            makes: what a function has to return to be accepted too; empty: no function is.
            instance: accept an instance of `base` in place of a subclass.

        Returns:
            The class, instance or function.

        Raises:
            UnknownName: there is no such module or attribute, or it is something else.
            NotAllowed: a file named it, and its package was not allowed.
        """
        self.check(name, what)

        def fits(one: Any) -> bool:
            return _is_kind(one, base, instance) or bool(makes and inspect.isroutine(one))

        found = _imported(name, what, fits)
        if not fits(found):
            raise UnknownName(
                f"{what} {name!r} is {quoted(found)}; expected {_expected(base, makes, instance)}"
            )
        # A class or an object is of the expected kind, whoever wrote it; a function could be anything that the module once imported.
        if (
            inspect.isroutine(found)
            and not self._is_own(name)
            and not self._allows(str(getattr(found, "__module__", "")))
        ):
            raise NotAllowed(
                f"{what} {name!r} is a function of {getattr(found, '__module__', None)!r}, which was not allowed; "
                "a file may only name functions that are defined in an allowed package"
            )
        return found

    def plain(self) -> dict[str, Any]:
        """For the job of a process of ours."""
        return {
            "packages": sorted(self.packages),
            "names": sorted(self.names),
            "everything": self.everything,
        }

    @classmethod
    def of_job(cls, given: Mapping[str, Any]) -> Imports:
        """What a job does not say is not allowed."""
        return cls(
            frozenset(given.get("packages", ())),
            frozenset(given.get("names", ())),
            given.get("everything") is True,
        )

    def _is_own(self, name: str) -> bool:
        return self.everything or name in self.names

    def _allows(self, module: str) -> bool:
        package = module.partition(".")[0]
        return self.everything or package in self.packages or package in provided()


OWN = Imports(everything=True)
# What the experiment that is being made may import. Not a field of it: no key of a file may reach it.
permission: ContextVar[Imports] = ContextVar("permission", default=OWN)


def permitted(config: object, allow_imports: Iterable[str] = ()) -> Imports:
    """What a configuration may import: all that the user names in Python, and of what a file names that which is allowed."""
    packages = frozenset([allow_imports] if isinstance(allow_imports, str) else allow_imports)
    for package in packages:
        if not str(package).isidentifier():
            raise ValueError(
                f"allow_imports: expected the name of a package such as my_models, got {quoted(package)}"
            )
    return Imports(packages, config.typed) if isinstance(config, FromFile) else OWN


def announced(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; a name has several where several packages announce it."""
    found: dict[str, list[EntryPoint]] = {}
    for point in _points(group, tuple(sys.path)):
        found.setdefault(point.name, []).append(point)
    return found


@lru_cache(maxsize=64)
def _points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Read every installed package's announcements; once per Python path, because it takes milliseconds."""
    return tuple(entry_points(group=group))


def provided() -> set[str]:
    """The packages that say in their entry points that they hold something for Equipoise."""
    return {
        point.module.partition(".")[0]
        for group in GROUPS
        for points in announced(group).values()
        for point in points
    }


def named(given: Any) -> frozenset[str]:
    """All words with a colon in nested plain data: those among them that are names of code were given by whoever gave the data.

    >>> sorted(named({"model": {"name": "mine:net"}, "methods": ["fedavg", "other:Method"]}))
    ['mine:net', 'other:Method']
    """
    if isinstance(given, str):
        # A partition has its parameters behind a second colon.
        return frozenset([given, ":".join(given.split(":")[:2])] if ":" in given else [])
    if isinstance(given, Mapping):
        given = given.values()
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        return frozenset()
    return frozenset().union(*map(named, given))


def _imported(name: str, what: str, fits: Callable[[Any], bool]) -> Any:
    """The attribute of a module, which is imported here; `fits` tells which names to offer instead of an unknown one."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UnknownName(
            f"unknown {what} {name!r}: cannot import {module_name!r} ({error}); is it installed, or on the Python path?"
        ) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [key for key, one in vars(module).items() if fits(one)]
            raise nearest(f"name in {module_name}", attribute, known)
        found = getattr(found, part)
        if isinstance(found, ModuleType):
            raise UnknownName(
                f"{what} {name!r} leads through the module {found.__name__!r}; name that module before the colon"
            )
    return found


def _is_kind(found: Any, base: type, instance: bool) -> bool:
    if instance:
        return isinstance(found, base)
    return isinstance(found, type) and issubclass(found, base)


def _expected(base: type, makes: str, instance: bool) -> str:
    if instance:
        return f"a {base.__name__}" + (f" or a function that makes a {makes}" if makes else "")
    if makes:
        return f"a class or a function that makes a {makes}"
    return f"a subclass of equipoise.{base.__name__}"
