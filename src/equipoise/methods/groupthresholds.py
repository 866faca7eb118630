"""Thresholds by group at each client (Hardt et al., 2016).

Moritz Hardt, Eric Price and Nathan Srebro. Equality of Opportunity in Supervised Learning. Advances
in Neural Information Processing Systems 29 (NIPS), pages 3315-3323, 2016.
https://arxiv.org/abs/1610.02413
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from equipoise.client import Client
from equipoise.data.samples import Samples
from equipoise.method import Cohort, Count, Served, model_of
from equipoise.methods.fairfed import check_positive
from equipoise.methods.fedavg import FedAvg
from equipoise.models import Model
from equipoise.models.group_offsets import GroupOffsets
from equipoise.records import Down, State, Up
from equipoise.server import Server
from equipoise.task import Task

Margins = NDArray[np.float64]


@dataclass(frozen=True)
class GroupThresholds(FedAvg):
    """FedAvg; after the last round each client sets a threshold for each group of its samples.

    On its validation data a client chooses thresholds at which the model calls the same share of
    each group positive: of its positive samples (equal opportunity, Definition 2.2), or of all
    (demographic parity). Of these it takes the ones with the best accuracy (Section 4). As the
    `finish` of another method it shifts the model that clients of that method end up using.

    No number about groups leaves a client. Whoever predicts must know the group of a sample.
    Without `data.groups` all thresholds stay where they are.

    Attributes:
        metric: Share that is made equal: "opportunity" of positive samples, "parity" of all.
        column: Column of `data.groups`; by default the first.
        positive: Class that counts as positive, numbered from 0.
        min_count: Groups with fewer such validation samples keep the threshold of the model.
    """

    paper = "Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NIPS 2016"
    family = "personal"
    year = 2016
    fairness = "groups"
    exchanges = "1; at the end 1"
    passes = "E·T, and at the end a pass over the client's validation data"
    needs = ("classes",)
    served_models = ("personal", "global")
    compares_groups: ClassVar[bool] = True
    composable_finish: ClassVar[bool] = True
    uses_validation: ClassVar[bool] = True

    metric: Literal["opportunity", "parity"] = "opportunity"
    column: str = ""
    positive: Annotated[int, Ge(0)] = 1
    min_count: Count = 10

    def check(self, task: Task) -> None:
        """Refuse a positive class that there is not."""
        check_positive("groupthresholds", self.positive, task)

    def finish(self, server: Server, state: State, everyone: Cohort) -> State:
        """Let every client choose its thresholds."""
        everyone.run(self.choose, each=lambda client: self.deliver(server, state, client))
        return state

    def base_models(self, client: Client, down: Down) -> Mapping[str, Model | Served]:
        """Return the models of the federation; a composition replaces them by its base's."""
        return {"global": Served(client.load(down.model), same_for_all=True)}

    def main_of_base(self, client: Client, down: Down) -> str:
        """Return the model that clients end up using; a composition replaces it by its base's."""
        return "global"

    def choose(self, client: Client, down: Down) -> Up:
        """Choose thresholds on the validation data, and store them at the client."""
        samples = client.validation
        model = self._main_model(client, down)
        if samples.groups is None or not len(samples):
            return Up()
        column = self.column or samples.groups.columns[0]
        margin = _margins(client.predict(model, samples), self.positive)
        thresholds = self._thresholds(margin, samples, column)
        offsets = torch.zeros(len(thresholds), client.task.outputs)
        offsets[:, self.positive] = -torch.tensor(list(thresholds.values()))
        client.state["column"] = column
        client.state["groups"] = list(thresholds)
        client.state["offsets"] = offsets
        return Up()

    def _thresholds(self, margin: Margins, samples: Samples, column: str) -> dict[str, float]:
        """Return group -> threshold on the margin of the positive class; 0 is the model's own."""
        assert samples.groups is not None
        is_positive = samples.y.numpy() == self.positive
        groups = np.array(samples.groups.names_of(column))
        counted = is_positive if self.metric == "opportunity" else np.ones(len(groups), dtype=bool)
        members = {}
        for name in sorted(set(groups.tolist())):
            own = margin[(groups == name) & counted]
            if len(own) >= self.min_count:
                members[name] = own
        if len(members) < 2:
            return dict.fromkeys(members, 0.0)
        best: dict[str, float] = {}
        most = -1
        for share in _shares(members):
            thresholds = {name: _threshold(own, share) for name, own in members.items()}
            cuts = np.array([thresholds.get(name, 0.0) for name in groups])
            right = int(((margin > cuts) == is_positive).sum())
            if right > most:
                best, most = thresholds, right
        return best

    def _main_model(self, client: Client, down: Down) -> Model:
        return model_of(self.base_models(client, down)[self.main_of_base(client, down)])

    def serves(self, client: Client, down: Down) -> dict[str, Model | Served]:
        """Return the model with the client's thresholds, and the models of the federation."""
        personal = self._main_model(client, down)
        if "offsets" in client.state:
            state = client.state
            net = GroupOffsets(personal.net, state["column"], state["groups"], state["offsets"])
            personal = Model(net, "group offsets")
        served: dict[str, Model | Served] = {"personal": Served(personal, main=True)}
        for name, model in self.base_models(client, down).items():
            served.setdefault(name, model)
        return served


def _margins(outputs: Tensor, positive: int) -> Margins:
    """Return by how much the output of the positive class exceeds the largest other one."""
    others = outputs.double().clone()
    others[:, positive] = -torch.inf
    return np.asarray((outputs[:, positive].double() - others.max(1).values).numpy())


def _shares(members: Mapping[str, Margins]) -> list[float]:
    """Return the shares that some group can have exactly, falling from 1 to 0."""
    shares = {0.0}
    for own in members.values():
        shares.update(count / len(own) for count in range(1, len(own) + 1))
    return sorted(shares, reverse=True)


def _threshold(margins: Margins, share: float) -> float:
    """Return a threshold above which as near as possible a share of the margins lies.

    It lies halfway between two margins.

    >>> _threshold(np.array([3.0, 1.0, -1.0, -2.0]), 0.5)
    0.0
    """
    falling = np.sort(margins)[::-1]
    count = int(np.floor(share * len(falling) + 0.5))
    if count == 0:
        return float(falling[0] + 1.0)
    if count == len(falling):
        return float(falling[-1] - 1.0)
    return float((falling[count - 1] + falling[count]) / 2)
