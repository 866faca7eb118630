"""What a run says before it trains, where nobody watches it."""

from __future__ import annotations

import sys
from typing import Any

from equipoise.data.check import understood
from equipoise.data.pipeline import is_own
from equipoise.data.words import in_words, model_in_words
from equipoise.experiment.experiment import Experiment
from equipoise.models.registry import AUTO


def tell(wanted: Experiment, shape: tuple[int, ...], asked: Any) -> None:
    """How the user's own data were understood, and a model that was chosen for images: printed before training where nobody watches."""
    lines = []
    if wanted.dataset is not None or is_own(wanted.data):
        lines = in_words(understood(wanted.data, wanted.dataset))
    if asked == AUTO and wanted.model == "cnn" and not wanted.models:
        lines.append(model_in_words(wanted.model, shape))
    for line in lines:
        print(line, file=sys.stderr)
