"""Reproducible matrix products: the mode of Intel's MKL, the library behind torch's products.

By default the last bits of a product may depend on where its operands lie in memory. In the mode
`AUTO,STRICT` they do not. A process fixes its mode at its first product, and its children inherit
the request through their environment. So the request is made when this package is imported.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

VARIABLE = "MKL_CBWR"
REPRODUCIBLE = "AUTO,STRICT"
OFF = "OFF"
_NONE = "none"  # torch was built without MKL
_UNKNOWN = "unknown"  # this build of torch does not say
# The function that returns the mode has another name if MKL is part of torch's own library.
_GETTERS = ("mkl_serv_cbwr_get", "MKL_CBWR_Get")
_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll")
_WHOLE_MODE = -1  # asks for branch and flags together
_STRICT = 0x10000
# The numbers of MKL's branches in its header mkl_service.h.
_BRANCHES = {
    1: OFF,
    2: "AUTO",
    3: "COMPATIBLE",
    4: "SSE2",
    6: "SSSE3",
    7: "SSE4_1",
    8: "SSE4_2",
    9: "AVX",
    10: "AVX2",
    11: "AVX512_MIC",
    12: "AVX512",
    13: "AVX512_MIC_E1",
    14: "AVX512_E1",
}


def request_reproducible() -> None:
    """Request reproducible products in this process and its children.

    A variable MKL_CBWR that the user has set stays as it is. An empty one is MKL's own default.
    """
    os.environ.setdefault(VARIABLE, REPRODUCIBLE)


def was_requested_too_late() -> bool:
    """Return True if torch multiplied matrices before this process requested a mode."""
    return bool(os.environ.get(VARIABLE)) and mode() == OFF


def is_reproducible() -> bool:
    """Return True if a product has the same bits wherever its operands lie in memory."""
    return mode().endswith(",STRICT")


def mode() -> str:
    """Return the mode in force in this process, in the words of MKL_CBWR.

    It is "OFF" by MKL's own default, "none" without MKL, and "unknown" if torch does not say.
    """
    import torch  # not above: to request a mode needs no torch

    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return _NONE
    folder = Path(torch.__file__).parent / "lib"
    for library in _LIBRARIES:
        if (folder / library).is_file():
            return _mode_of(ctypes.CDLL(str(folder / library)))
    return _UNKNOWN


def _mode_of(library: ctypes.CDLL) -> str:
    for getter in _GETTERS:
        if hasattr(library, getter):
            number = getattr(library, getter)(_WHOLE_MODE)
            branch = _BRANCHES.get(number & ~_STRICT, _UNKNOWN)
            return f"{branch},STRICT" if number & _STRICT else branch
    return _UNKNOWN


def setting_of(mode: str) -> str:
    """Return how a user requests a mode in a shell.

    Example:
        >>> setting_of("AVX2,STRICT")
        'MKL_CBWR=AVX2,STRICT'
    """
    return f"{VARIABLE}=" if mode == OFF else f"{VARIABLE}={mode}"
