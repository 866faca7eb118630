"""Registry of things by name: built in, registered in this process, or in a package."""

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

    A name is looked up among the built-in ones, then among those registered in this process, then
    among the entry points of installed packages. "package.module:name" is imported, if the caller
    may import it. A built-in name is never replaced.

    Attributes:
        kind: The kind of things for messages, such as "metric".
        group: The entry-point group, such as "equipoise.metrics".
        built_in: The built-in entries by name.
        load: Imports an entry, given its name, its import path and what may be imported.
        registered: The entries that were registered in this process.
    """

    kind: str
    group: str
    built_in: Mapping[str, Entry]
    load: Callable[[str, str, Imports], Entry]
    registered: dict[str, Entry] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return all names: the built-in ones, then all others in alphabetical order."""
        return [*self.built_in, *self.outside()]

    def outside(self) -> list[str]:
        """Return the names that are not built in."""
        return sorted({*self.registered, *self._points()} - set(self.built_in))

    def _points(self) -> dict[str, list[EntryPoint]]:
        """Return the entry points by name.

        One that names a whole module has no name; it only allows files to name code there.
        """
        by_name = {}
        for name, points in announced(self.group).items():
            if _is_name(name) and all(point.attr for point in points):
                by_name[name] = points
        return by_name

    def add(self, name: str, entry: Entry) -> None:
        """Register an entry in this process, in place of an earlier one of the same name.

        Args:
            name: The name.
            entry: The entry.

        Raises:
            ValueError: If the name is built in, or cannot be a name.
        """
        if not isinstance(name, str) or not _is_name(name):
            raise ValueError(
                f"{self.kind} {quoted(name)}: expected a name of at most 64 letters, digits, "
                "_ and -, beginning with a letter"
            )
        if name in self.built_in:
            raise ValueError(f"{self.kind} {name!r} is built in; choose another name")
        self.registered[name] = entry

    def find(self, name: str, imports: Imports = OWN) -> Entry:
        """Return the entry of a name, or of "package.module:name".

        Args:
            name: The name.
            imports: The packages from which code may be imported.

        Raises:
            UnknownName: If there is no such entry; it offers the nearest known name.
            NotAllowed: If a file named code of a package that was not allowed.
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
            packages = " and ".join(map(_package, points))
            raise UnknownName(
                f"{self.kind} {name!r} is announced by {packages}; "
                f"uninstall one of them, or name it as {_path(points[0])}"
            )
        try:
            return self.load(name, _path(points[0]), OWN)
        except Exception as error:  # a package may fail in any way
            raise UnknownName(
                f"{self.kind} {name!r} of {_package(points[0])} cannot be loaded "
                f"({type(error).__name__}: {error}); update or uninstall that package"
            ) from error

    def source(self, name: str) -> str:
        """Return the origin of a name: "built in", its package, or "this process"."""
        if name in self.built_in:
            return "built in"
        return self._package_of(name) or "this process"

    def _package_of(self, name: str) -> str:
        """Return the package that announces a name; empty if the entry is another one."""
        points = self._points().get(name, [])
        paths = [_path(point) for point in points]
        other = name in self.registered and import_name(self.registered[name]) not in paths
        return "" if other else ", ".join(map(_package, points))

    def listed(self) -> tuple[dict[str, Entry], dict[str, str]]:
        """Return all entries by name, and the reason for names whose package is broken."""
        entries: dict[str, Entry] = {}
        broken: dict[str, str] = {}
        for name in self.names():
            try:
                entries[name] = self.find(name)
            except UnknownName as error:
                broken[name] = str(error)
        return entries, broken

    def portable(self, name: str) -> str:
        """Return the name under which other processes find an entry, or its import path."""
        if name in self.built_in or name not in self.registered or self._package_of(name):
            return name
        return import_name(self.registered[name]) or name

    def is_local(self, name: str) -> bool:
        """Return True if only this process knows a name."""
        if name not in self.registered or self.source(name) != "this process":
            return False
        return import_name(self.registered[name]) is None


def import_name(thing: Any) -> str | None:
    """Return the import path of a class, a function or an object around a function.

    Returns:
        "package.module:name"; None if an import would not find it.

    Example:
        >>> import_name(Registry), import_name(lambda: 0)
        ('equipoise.validation.registry:Registry', None)
    """
    function = getattr(thing, "function", None)  # of a metric or a loss
    module = getattr(function if function is not None else thing, "__module__", None)
    path = thing.name if function is not None else getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or module == "__main__":
        return None
    imported: Any = sys.modules.get(module)
    for part in path.split("."):
        imported = getattr(imported, part, None)
    return f"{module}:{path}" if imported is thing else None


def plain_function(function: Any) -> str:
    """Return a function as text for files: its import path, or a note that it has none.

    Args:
        function: A function, or text, which stays as it is.

    Example:
        >>> plain_function("iid"), plain_function(lambda: 0)
        ('iid', '<function <lambda> given in Python>')
    """
    if isinstance(function, str):
        return function
    qualified = getattr(function, "__qualname__", type(function).__name__)
    return import_name(function) or f"<function {qualified} given in Python>"


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z][\w-]{0,63}", name) is not None


def _path(point: EntryPoint) -> str:
    return f"{point.module}:{point.attr}"


def _package(point: EntryPoint) -> str:
    if point.dist is None:
        return point.module
    return f"{point.dist.name} {point.dist.version}"
