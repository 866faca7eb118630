"""Server's state on disk: one file for the state, and one per client for values by client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from equipoise.records import PerClient, Record, Saved, State, read, tensors_of, write
from equipoise.storage.files import digest, in_subfolder, writable_path
from equipoise.storage.store import RoundRecord, Store
from equipoise.tree import Tree

_PLACEHOLDER = "@perclient"
_LOOKED_AT = 1_000  # files in which the cause of a failure is looked for


def save_server(store: Store, state: State, record: RoundRecord) -> Callable[[], State]:
    """Write the server's state to new files, and name them in the round's record.

    Args:
        store: The store of the run.
        state: The state.
        record: The record of the round.

    Returns:
        A function that returns the state with values by client in files, once it is committed.
    """
    by_client: dict[str, PerClient] = {}
    state = _held(state)
    written = State(_lifted(dict(state), "", by_client))
    name = f"server-r{record.round}a{record.attempt}.safetensors"
    write(written, store.files / name)
    record.files.append(("server", "", name, digest(store.files / name)))
    saved = {path: paths_of(mapping) for path, mapping in by_client.items()}
    for path, mapping in by_client.items():
        stem = hashlib.blake2b(path.encode(), digest_size=4).hexdigest()
        for client, value in mapping.changed.items():
            own = hashlib.blake2b(client.encode(), digest_size=8).hexdigest()
            file = in_subfolder(
                own, f"perclient-{stem}-{own}-r{record.round}a{record.attempt}.safetensors"
            )
            write(Record(value=value), writable_path(store.files, file))
            record.files.append(
                ("perclient", f"{path}\x1f{client}", file, digest(store.files / file))
            )
            saved[path][client] = store.files / file
    return lambda: State(_settled(dict(state), "", saved))


def paths_of(mapping: PerClient) -> dict[str, Path]:
    """Return the file of each client's saved value."""
    return dict(mapping.saved.paths) if isinstance(mapping.saved, Saved) else {}


def _held(value: Any) -> Any:
    """Return a value with its trees in memory, since files of large replies end with the round."""
    if isinstance(value, Tree):
        return value.held()
    if isinstance(value, Record):
        return type(value)({name: _held(item) for name, item in value.items()})
    if type(value) is dict:
        return {name: _held(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_held(item) for item in value]
    return value


def load_server(store: Store) -> State:
    """Return the server's state after the last committed round."""
    path = store.current("server")[""].path
    saved: dict[str, dict[str, Path]] = {}
    for key, file in store.current("perclient").items():
        owner, _, client = key.partition("\x1f")
        saved.setdefault(owner, {})[client] = file.path
    return State(_settled(dict(read(path, lazy=False)), "", saved))


def foreign_tensor(store: Store, initial: Callable[[str], Tree]) -> str | None:
    """Return a saved tensor that no run writes: of another dtype or shape than its model's.

    Args:
        store: The store of a run that failed after it was resumed.
        initial: The parameters of a model, by its name.

    Returns:
        A sentence that names file and tensor; None if the files that were looked at are in order.
    """
    files = [store.current("server")[""], *store.current("client").values()]
    for file in files[:_LOOKED_AT]:
        if file.kept_at != "server":
            continue
        for where, tree in tensors_of(read(file.path, lazy=False)):
            wrong = _mismatch(tree, initial) if isinstance(tree, Tree) else None
            if wrong is not None:
                return f"{file.path.name}: {where} {wrong}"
    return None


def _mismatch(tree: Tree, initial: Callable[[str], Tree]) -> str | None:
    try:
        template = initial(tree.model)
    except KeyError:
        return None  # a model of the method's own
    for name in tree:
        if name not in template:
            continue
        tensor = tree[name]
        expected = template[name]
        if (
            tensor.is_floating_point() != expected.is_floating_point()
            or tensor.shape != expected.shape
        ):
            return (
                f"holds {name} as {tensor.dtype} of shape {tuple(tensor.shape)}, where its model "
                f"has {expected.dtype} of shape {tuple(expected.shape)}"
            )
    return None


def _lifted(
    values: Mapping[str, Any], prefix: str, by_client: dict[str, PerClient]
) -> dict[str, Any]:
    """Return a state with placeholders for values by client, which are collected."""
    result = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, PerClient):
            by_client[path] = value
            value = {_PLACEHOLDER: path}
        elif isinstance(value, Mapping) and type(value) is dict:
            value = _lifted(value, f"{path}/", by_client)
        result[name] = value
    return result


def _settled(
    values: Mapping[str, Any], prefix: str, saved: Mapping[str, Mapping[str, Path]]
) -> dict[str, Any]:
    """Return a state whose values by client are read from files."""
    result = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, PerClient) or (type(value) is dict and _PLACEHOLDER in value):
            value = PerClient(Saved(saved.get(path, {})))
        elif type(value) is dict:
            value = _settled(value, f"{path}/", saved)
        result[name] = value
    return result
