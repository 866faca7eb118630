"""A method whose clients check the mode of matrix products in their process."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise import mkl
from equipoise.client import Client
from equipoise.methods.fedavg import FedAvg
from equipoise.records import Down, Up


@dataclass(frozen=True)
class InMode(FedAvg):
    """FedAvg that fails at a client whose process has another mode.

    Attributes:
        mode: The expected mode.
    """

    mode: str = mkl.REPRODUCIBLE

    def client(self, client: Client, down: Down) -> Up:
        if mkl.mode() != self.mode:
            raise ValueError(f"expected the mode {self.mode}, got {mkl.mode()}")
        return super().client(client, down)
