"""What a method costs, counted and not timed: samples that pass the networks, with and without
gradient, at clients and at the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from equipoise.models import Model
from equipoise.runtime import executor
from equipoise.training.workbench import Workbench


class Passes(Counter[tuple[str, str]]):
    """(who, kind) -> samples: who is "client" or "server", kind is "gradient" or "forward".

    Evaluations are not counted.
    """


@contextmanager
def counted() -> Iterator[Passes]:
    """Counts while experiments run in process (workers=0) inside it: `with counted() as passes:
    eq.run(...)`.
    """
    passes, who = Passes(), ["server"]
    build, step, perform = Workbench._build, executor._step, executor.ClientExecutor.execute

    def built(self: Workbench, key: str) -> Model:
        model = build(self, key)

        def seen(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            passes[who[-1], "gradient" if torch.is_grad_enabled() else "forward"] += len(inputs[0])

        if hasattr(model.net, "features"):  # a generator or the like sees no samples
            model.net.features.register_forward_pre_hook(seen)  # type: ignore[union-attr]
        return model

    def within(name: str, function: Any) -> Any:
        def called(*arguments: Any, **more: Any) -> Any:
            who.append(name)
            try:
                return function(*arguments, **more)
            finally:
                who.pop()

        return called

    with (
        patch.object(Workbench, "_build", built),
        patch.object(executor, "_step", within("client", step)),
        patch.object(executor.ClientExecutor, "execute", within("measuring", perform)),
    ):
        yield passes
    for kind in ("gradient", "forward"):
        del passes["measuring", kind]
