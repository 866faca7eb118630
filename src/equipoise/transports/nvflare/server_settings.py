"""Settings of the server of a network, which its operator writes."""

from __future__ import annotations

from pathlib import Path

from equipoise.experiment import ConfigurationError
from equipoise.transports.nvflare.serving import ServerFiles
from equipoise.validation import safe_yaml

FILE = Path("local", "equipoise.yaml")
_KEYS = ("validation", "test")


def server_files(folder: Path) -> ServerFiles:
    """Return the data that lie at the server, from the file of its settings.

    Args:
        folder: The folder of the server. Its settings may be missing.

    Raises:
        ConfigurationError: If the file has other entries than ``validation`` and ``test``.
    """
    path = folder / FILE
    if not path.exists():
        return ServerFiles()
    values = safe_yaml.read(path) or {}
    if not isinstance(values, dict) or not set(values) <= set(_KEYS):
        raise ConfigurationError(
            f"{path}: expected entries validation and test, each with the path of a file, got "
            f"{values!r:.200}; remove the others"
        )
    files = {}
    for key, value in values.items():
        if value is not None:
            files[key] = folder / str(value)
    return ServerFiles(**files)
