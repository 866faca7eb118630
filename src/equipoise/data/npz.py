"""NPZ files of plain arrays."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """All arrays of an NPZ file; damaged files and serialised Python objects are refused."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, AttributeError) as error:
        raise ValueError(f"{file} is damaged or not an NPZ file of plain arrays ({error}); replace it by a whole one") from error
