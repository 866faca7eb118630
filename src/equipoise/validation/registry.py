"""The registry: what is known by name, built in, registered in this process, or announced by an installed package."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any, Generic, TypeVar

from equipoise.validation.imports import OWN, Imports, announced
from equipoise.validation.names import UnknownName, nearest, quoted

Entry = TypeVar("Entry")


@dataclass
class Registry(Generic[Entry]):
    """Things of one kind by name.

    A name is looked up among the built-in ones, then among those registered in this process, then among the entry points
    of installed packages. "package.module:name" is imported, if the caller may import it. A built-in name is never replaced.
    """

    kind: str  # "metric", for messages
    group: str  # the entry-point group, "equipoise.metrics"
    built_in: Mapping[str, Entry]
    # name, "package.module:name", what may be imported -> the entry; raises where it is something else
    load: Callable[[str, str, Imports], Entry]
    registered: dict[str, Entry] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return every name that `find` knows: the built-in ones, then all others in alphabetical order."""
        return [*self.built_in, *self.outside()]

    def outside(self) -> list[str]:
        """Return the names that are not built in."""
        return sorted({*self.registered, *self._points()} - set(self.built_in))

    def _points(self) -> dict[str, list[EntryPoint]]:
        """The announced names; an entry point that names a whole module gives no name, it only allows files to name code there."""
        return {
            name: points
            for name, points in announced(self.group).items()
            if _is_name(name) and all(point.attr for point in points)
        }

    def add(self, name: str, entry: Entry) -> None:
        """Make an entry known in this process; one of the same name that was registered before is replaced.

        Raises:
            ValueError: the name is built in, or cannot be a name.
        """
        if not isinstance(name, str) or not _is_name(name):
            raise ValueError(
                f"{self.kind} {quoted(name)}: expected a name of at most 64 letters, digits, _ and -, beginning with a letter"
            )
        if name in self.built_in:
            raise ValueError(f"{self.kind} {name!r} is built in; choose another name")
        self.registered[name] = entry

    def find(self, name: str, imports: Imports = OWN) -> Entry:
        """Return the entry of a name, or of "package.module:name".

        Raises:
            UnknownName: nothing has this name; the nearest known one is offered.
            NotAllowed: a file named code of a package that was not allowed.
        """
        if not isinstance(name, str):
            raise UnknownName(f"unknown {self.kind} {quoted(name)}: expected a name")
        if name in self.built_in:
            return self.built_in[name]
        if name in self.registered:
            return self.registered[name]
        if ":" in name:
            return self.load(name.rpartition(":")[2], name, imports)
        points = self._points().get(name)
        if not points:
            raise nearest(self.kind, name, self.names())
        if len({point.value for point in points}) > 1:
            raise UnknownName(
                f"{self.kind} {name!r} is announced by {' and '.join(map(_package, points))}; uninstall one of them, or name it as {_path(points[0])}"
            )
        try:
            return self.load(name, _path(points[0]), OWN)
        except Exception as error:  # somebody's module may fail in any way
            raise UnknownName(
                f"{self.kind} {name!r} of {_package(points[0])} cannot be loaded ({type(error).__name__}: {error}); update or uninstall that package"
            ) from error

    def source(self, name: str) -> str:
        """Return where a name comes from: "built in", the package that announces it, or "this process"."""
        if name in self.built_in:
            return "built in"
        return self._package_of(name) or "this process"

    def _package_of(self, name: str) -> str:
        """The package that announces a name; empty if this process registered something else under it."""
        points = self._points().get(name, [])
        paths = [_path(point) for point in points]
        other = name in self.registered and import_name(self.registered[name]) not in paths
        return "" if other else ", ".join(map(_package, points))

    def listed(self) -> tuple[dict[str, Entry], dict[str, str]]:
        """Return all entries by name; and of names whose package is broken the reason, because one broken package must not hide the others."""
        entries: dict[str, Entry] = {}
        broken: dict[str, str] = {}
        for name in self.names():
            try:
                entries[name] = self.find(name)
            except UnknownName as error:
                broken[name] = str(error)
        return entries, broken

    def portable(self, name: str) -> str:
        """Return the name under which other processes find an entry: of one that was registered here, where it can be imported from."""
        if name in self.built_in or name not in self.registered or self._package_of(name):
            return name
        return import_name(self.registered[name]) or name

    def is_local(self, name: str) -> bool:
        """Return whether only this process knows a name."""
        return (
            name in self.registered
            and self.source(name) == "this process"
            and import_name(self.registered[name]) is None
        )


def import_name(thing: Any) -> str | None:
    """Return "package.module:name" of a class, a function or an object around a function; None if an import would not find it.

    >>> import_name(Registry), import_name(lambda: 0)
    ('equipoise.validation.registry:Registry', None)
    """
    function = getattr(thing, "function", None)  # of a metric or a loss
    module = getattr(function if function is not None else thing, "__module__", None)
    path = thing.name if function is not None else getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return f"{module}:{path}" if found is thing else None


def plain_function(given: Any) -> str:
    """Return a function as text for files: the name that an import finds, or a note that there is none; text stays as it is.

    >>> plain_function("iid"), plain_function(lambda: 0)
    ('iid', '<function <lambda> given in Python>')
    """
    if isinstance(given, str):
        return given
    qualified = getattr(given, "__qualname__", type(given).__name__)
    return import_name(given) or f"<function {qualified} given in Python>"


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w-]{0,63}", name) is not None


def _path(point: EntryPoint) -> str:
    return f"{point.module}:{point.attr}"


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
