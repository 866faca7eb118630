"""Environment of processes that execute clients' steps."""

from __future__ import annotations

# Each process computes on one thread; libraries that read the environment find it there.
SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
