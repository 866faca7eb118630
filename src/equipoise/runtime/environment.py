"""Environment of processes that execute clients' steps."""

from __future__ import annotations

from contextlib import suppress

# Each process computes on one thread; libraries that read the environment find it there.
SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# For glibc: keep the memory of activations and gradients between steps. By default large blocks go
# back to the system when they are freed, and every step pays for new pages.
HEAP = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**27),
    "MALLOC_TOP_PAD_": str(2**24),
}
_HEAP_NUMBERS = {
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
}  # the same in mallopt(3)


def keep_heap() -> None:
    """Apply the settings of `HEAP` to this process, which must be ours and not a notebook's."""
    import ctypes

    with suppress(AttributeError, OSError):  # no glibc
        for name, value in HEAP.items():
            ctypes.CDLL(None).mallopt(_HEAP_NUMBERS[name], int(value))
