"""FedAvg with fine-tuning (Yu et al., 2020).

Tao Yu, Eugene Bagdasaryan and Vitaly Shmatikov. Salvaging Federated Learning by Local Adaptation.
Preprint, 2020. https://arxiv.org/abs/2002.04758
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from equipoise.client import Client
from equipoise.method import Cohort, Count, Served
from equipoise.methods.fedavg import FedAvg
from equipoise.models import Model
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.tree import RunningMean

Averaging = Literal["none", "second_half"]


@dataclass(frozen=True)
class Finetune(FedAvg):
    """FedAvg; after the last round each client fine-tunes the global model on its own data.

    Each client serves its fine-tuned model. A client that is absent after the last round serves
    the global model until it returns.

    Attributes:
        tune_epochs: Epochs of fine-tuning, with the optimiser and the learning rate of the last
            round.
        tune_average: Model after the last epoch of tuning ("none"), or the mean of the models after
            each epoch of the second half ("second_half").
        validation: Train on the validation data, too, in all rounds and in tuning. As the `finish`
            of another method, in tuning only.
    """

    paper = "Yu, Bagdasaryan and Shmatikov, Salvaging Federated Learning by Local Adaptation, 2020"
    family = "personal"
    year = 2020
    fairness = "none"
    passes = "E·T, and at the end e·T"
    served_models = ("personal", "global")
    exchanges = "1; at the end 1"
    composable_finish: ClassVar[bool] = True

    tune_epochs: Count = 5
    tune_average: Averaging = "none"
    validation: bool = False

    def held_out_rounds(self, rounds: int) -> int | None:
        """Return 0 if clients train on validation data from the first round on."""
        return 0 if self.validation else None

    def client(self, client: Client, down: Down) -> Up:
        """Train the received model as FedAvg does, on all data if that is set."""
        with client.training_on_all(self.validation):
            return super().client(client, down)

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        """Let every client fine-tune the final global model."""
        everyone.run(self.tune, each=lambda client: self.deliver(server, state, client))
        return state

    def tune(self, client: Client, down: Down) -> Up:
        """Fine-tune the received model and store it at the client."""
        received = client.load(down.model)
        with client.training_on_all(self.validation):
            client.state["tuned"] = tuned(
                client, received, self.tune_epochs, average=self.tune_average
            )
        return Up()

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the fine-tuned model and the global one."""
        personal = client.load(client.state.get("tuned", down.model))
        return {
            "personal": Served(personal, main=True),
            "global": Served(client.load(down.model), same_for_all=True),
        }


def tuned(
    client: Client,
    model: Model,
    epochs: int,
    purpose: str = "tune",
    average: Averaging = "none",
) -> Model:
    """Return a copy of a model, trained on the client's own data.

    Args:
        client: The client.
        model: The model to copy.
        epochs: Epochs of training.
        purpose: The name of the random stream of the batch order.
        average: "second_half" returns the mean of the models after each epoch of the second half:
            of five epochs, of the last three.
    """
    copy = client.load(model.tree())
    mean = RunningMean()

    def add_second_half(epoch: int) -> None:
        if epoch > epochs // 2:
            mean.add(copy.tree())

    after_epoch = add_second_half if average == "second_half" else None
    client.fit(copy, epochs=epochs, purpose=purpose, after_epoch=after_epoch)
    return client.load(mean.tree()) if mean.count else copy
