"""A recurrent network for patient histories: events over time, and two constant facts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from equipoise.models.network import Network
from equipoise.models.parts import Count, Probability
from equipoise.task import Task


class History(nn.Module):
    """A bidirectional GRU with additive attention over events (Yu et al., KDD 2025).

    Embeddings of sex and postal code are added. The input is one tensor (batch, 1 + L, 4): row 0
    holds (sex, postal code, number of events, 0), each further row one event: (code, value, age, 1
    if the value is missing). Rows after the number of events are ignored. Code 0 means no event: it
    represents the history of a patient who has none. Indices past the end of a table share its last
    row, "unknown".
    """

    def __init__(
        self, codes: int, postals: int, sexes: int, embedding: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.code = nn.Embedding(codes + 2, embedding)  # 0 and "unknown" in addition to 1..codes
        self.sex = nn.Embedding(sexes + 1, 8)
        self.postal = nn.Embedding(postals + 1, 16)
        self.gru = nn.GRU(
            embedding + 3,
            hidden,
            num_layers=2,
            batch_first=True,
            bidirectional=True,
            dropout=dropout,
        )
        self.project = nn.Linear(2 * hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.size = 2 * hidden + 8 + 16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of each patient."""
        states, mask = self.states(x)
        context = (self.attention(states, mask).unsqueeze(1) @ states).squeeze(1)
        return torch.cat(
            [context, _looked_up(self.sex, x[:, 0, 0]), _looked_up(self.postal, x[:, 0, 1])], dim=1
        )

    def states(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states after each event (batch, L, 2 * hidden) and a mask (batch, L)."""
        count = x[:, 0, 2].long()
        steps = torch.arange(x.shape[1] - 1, device=x.device)
        events = torch.where((steps < count.unsqueeze(1)).unsqueeze(2), x[:, 1:], 0.0)
        # a packed sequence cannot be empty: the first row, now zeros, stands for "no event"
        count = count.clamp(min=1)
        inputs = torch.cat([_looked_up(self.code, events[..., 0]), events[..., 1:]], dim=2)
        packed = pack_padded_sequence(inputs, count.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(
            self.gru(packed)[0], batch_first=True, total_length=len(steps)
        )
        return states, steps < count.unsqueeze(1)

    def attention(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the weights of the steps (batch, L), which sum to 1 and are 0 on padding."""
        scores = self.score(torch.tanh(self.project(states))).squeeze(2)
        return torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=1)


def gru(
    task: Task,
    *,
    codes: Count = 1000,
    postals: Count = 50,
    sexes: Count = 2,
    embedding: Count = 128,
    hidden: Count = 256,
    dropout: Probability = 0.3,
) -> Network:
    """FedAKD's patient model: two-layer bidirectional GRU with additive attention.

    It also has embeddings of sex and postal code.
    """
    if len(task.shape) != 2 or task.shape[0] < 2 or task.shape[1] != 4:
        raise ValueError(
            "needs samples of shape (1 + events, 4), row 0 = (sex, postal, length, 0); these "
            f"have shape {task.shape}"
        )
    history = History(codes, postals, sexes, embedding, hidden, dropout)
    return Network(
        history, nn.Sequential(nn.Dropout(dropout), nn.Linear(history.size, task.outputs))
    )


def _looked_up(table: nn.Embedding, indices: torch.Tensor) -> torch.Tensor:
    rows: torch.Tensor = table(indices.long().clamp(0, table.num_embeddings - 1))
    return rows
