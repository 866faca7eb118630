"""Import of code that a configuration names as "package.module:attribute".

Code named on the command line or in Python is trusted. Code named in a file (an experiment, the
folder of a run) is imported only from packages that the user allows, or that announce an entry
point of one of the GROUPS. The permission never comes from a file; it travels with the job to our
own processes.
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
from pathlib import Path
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
    """A configuration from a file.

    Attributes:
        typed: The names of code in it that the user gave on the command line.
        locations: File and line of each dotted key that the file has, for messages; empty for a key
            that the command line sets.
    """

    typed: frozenset[str] = frozenset()
    locations: Mapping[str, str] = {}

    def changed(self, values: Mapping[str, Any], typed: Iterable[Any] = ()) -> FromFile:
        """Return the configuration with other values.

        Args:
            values: All values.
            typed: Those that the user gave.
        """
        result = FromFile(values)
        result.typed = self.typed | named(list(typed))
        result.locations = self.locations
        return result

    def location_of(self, key: str) -> str | None:
        """Return file and line of a dotted key, or of the nearest section around it.

        Args:
            key: A key such as `training.lr`.
        """
        while key:
            if key in self.locations:
                return self.locations[key] or None
            key = key.rpartition(".")[0]
        return None


yaml.SafeDumper.add_representer(FromFile, yaml.SafeDumper.represent_dict)


@dataclass(frozen=True)
class Imports:
    """Permission to import code: everything, or some packages and some exact names."""

    packages: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    everything: bool = False

    def with_names(self, *values: Any) -> Imports:
        """Return a permission with the names in values that the user gave."""
        return replace(self, names=self.names | named(values))

    def __or__(self, other: Imports) -> Imports:
        return Imports(
            self.packages | other.packages,
            self.names | other.names,
            self.everything or other.everything,
        )

    def check(self, name: str, kind: str) -> None:
        """Check that a name may be imported; nothing is imported here.

        Args:
            name: "package.module:attribute".
            kind: The kind of thing, for messages.

        Raises:
            UnknownName: If it cannot be the name of code.
            NotAllowed: If a file named it, and its package was not allowed.
        """
        module, _, attribute = name.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
            raise UnknownName(
                f"unknown {kind} {quoted(name)}: expected a name of ours, "
                "or package.module:name for one of yours"
            )
        if not self._is_own(name) and not self._allows(module):
            package = module.partition(".")[0]
            raise NotAllowed(
                f"{quoted(name)} is named by a file, and code that a file names runs only if you "
                f"allow its package; if you trust it, add --allow-import {package} "
                f"(in Python allow_imports=[{package!r}])"
            )

    def load(
        self, name: str, kind: str, base: type, makes: str = "", instance: bool = False
    ) -> Any:
        """Import the object that a name stands for.

        Args:
            name: "package.module:attribute".
            kind: The kind of thing, for messages.
            base: A class; its subclasses are accepted.
            makes: The type that an accepted function returns; empty if no function is accepted.
            instance: Accept an instance of `base` instead of a subclass.

        Returns:
            The class, instance or function.

        Raises:
            UnknownName: If there is no such module or attribute, or it is something else.
            NotAllowed: If a file named it, and its package was not allowed.
        """
        self.check(name, kind)

        def fits(candidate: Any) -> bool:
            if makes and inspect.isroutine(candidate):
                return True
            return _is_kind(candidate, base, instance)

        imported = _imported(name, kind, fits)
        if not fits(imported):
            expected = _expected(base, makes, instance)
            raise UnknownName(f"{kind} {name!r} is {quoted(imported)}; expected {expected}")
        # A class or an object has the expected type, whoever wrote it. A function could be
        # anything that the module has imported.
        module = getattr(imported, "__module__", None)
        if inspect.isroutine(imported) and not self._is_own(name) and not self._allows(str(module)):
            raise NotAllowed(
                f"{kind} {name!r} is a function of {module!r}, which was not allowed; "
                "a file may only name functions that are defined in an allowed package"
            )
        return imported

    def plain(self) -> dict[str, Any]:
        """Return the permission as plain data, for the job of another process."""
        return {
            "packages": sorted(self.packages),
            "names": sorted(self.names),
            "everything": self.everything,
        }

    @classmethod
    def of_job(cls, allowed: Mapping[str, Any]) -> Imports:
        """Return the permission in a job; what it does not name is not allowed."""
        return cls(
            frozenset(allowed.get("packages", ())),
            frozenset(allowed.get("names", ())),
            allowed.get("everything") is True,
        )

    def _is_own(self, name: str) -> bool:
        return self.everything or name in self.names

    def _allows(self, module: str) -> bool:
        package = module.partition(".")[0]
        return self.everything or package in self.packages or package in provided()


OWN = Imports(everything=True)
# The permission of the experiment that is being checked. It is no field of the experiment, since
# no key of a file may set it.
permission: ContextVar[Imports] = ContextVar("permission", default=OWN)


def permitted(config: object, allow_imports: Iterable[str] = ()) -> Imports:
    """Return the permission of a configuration.

    Args:
        config: The configuration: one made in Python may import everything, one from a file what
            is allowed.
        allow_imports: The packages that are allowed.

    Raises:
        ValueError: If one of them is no name of a package.
    """
    packages = frozenset([allow_imports] if isinstance(allow_imports, str) else allow_imports)
    for package in packages:
        if not str(package).isidentifier():
            raise ValueError(
                "allow_imports: expected the name of a package such as my_models, "
                f"got {quoted(package)}"
            )
    return Imports(packages, config.typed) if isinstance(config, FromFile) else OWN


def announced(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; several packages may announce the same name."""
    by_name: dict[str, list[EntryPoint]] = {}
    for point in _points(group, tuple(sys.path)):
        by_name.setdefault(point.name, []).append(point)
    return by_name


@lru_cache(maxsize=64)
def _points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Read the entry points of all packages; once per Python path, as it takes milliseconds."""
    return tuple(entry_points(group=group))


def provided() -> set[str]:
    """Return the packages whose entry points add something to Equipoise."""
    packages = set()
    for group in GROUPS:
        for points in announced(group).values():
            packages |= {point.module.partition(".")[0] for point in points}
    return packages


def named(value: Any) -> frozenset[str]:
    """Return all texts with a colon in nested plain data, among them all names of code.

    Example:
        >>> sorted(named({"model": {"name": "mine:net"}, "methods": ["fedavg", "other:Method"]}))
        ['mine:net', 'other:Method']
    """
    if isinstance(value, str):
        if ":" not in value:
            return frozenset()
        # A partition has its parameters behind a second colon.
        return frozenset([value, ":".join(value.split(":")[:2])])
    if isinstance(value, Mapping):
        value = value.values()
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        return frozenset()
    return frozenset().union(*map(named, value))


def _imported(name: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    """Import a module and return its attribute.

    Args:
        name: "package.module:attribute".
        kind: The kind of thing, for messages.
        fits: Returns True for things that are offered in place of an unknown name.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UnknownName(
            f"unknown {kind} {name!r}: cannot import {module_name!r} ({error}); "
            f"{_import_advice(module_name)}"
        ) from error
    member: Any = module
    for part in attribute.split("."):
        if not hasattr(member, part):
            raise nearest(f"name in {module_name}", attribute, _known_names(module, fits))
        member = getattr(member, part)
        if isinstance(member, ModuleType):
            raise UnknownName(
                f"{kind} {name!r} leads through the module {member.__name__!r}; "
                "name that module before the colon"
            )
    return member


def _known_names(module: ModuleType, fits: Callable[[Any], bool]) -> list[str]:
    """Return the fitting names of a module: those of its own package, or else all."""
    fitting = {name: member for name, member in vars(module).items() if fits(member)}
    own = [name for name, member in fitting.items() if not _is_foreign(member, module.__name__)]
    return own or list(fitting)


def _is_foreign(candidate: Any, module: str) -> bool:
    """Return True for a class or a function that a module imported from another package."""
    if not (isinstance(candidate, type) or inspect.isroutine(candidate)):
        return False
    origin = getattr(candidate, "__module__", None)
    return origin is not None and _package_of(origin) != _package_of(module)


def _package_of(module: str) -> str:
    return module.partition(".")[0]


def _import_advice(module: str) -> str:
    """Return what to do so that Python finds a module."""
    top = module.partition(".")[0]
    if Path(f"{top}.py").is_file() or Path(top).is_dir():
        return f"{top} is in this folder: set PYTHONPATH=. in the environment, so that it is found"
    return "install its package, or add its folder to PYTHONPATH in the environment"


def _is_kind(candidate: Any, base: type, instance: bool) -> bool:
    if instance:
        return isinstance(candidate, base)
    return isinstance(candidate, type) and issubclass(candidate, base)


def _expected(base: type, makes: str, instance: bool) -> str:
    if instance:
        return f"a {base.__name__}" + (f" or a function that makes a {makes}" if makes else "")
    if makes:
        return f"a class or a function that makes a {makes}"
    return f"a subclass of equipoise.{base.__name__}"
