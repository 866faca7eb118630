"""What a user gets who says nothing: defaults and bounds of every setting.

A change here changes runs, and belongs into CHANGELOG.md.

python -m tests.core.test_settings > tests/core/settings.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from equipoise.data.config import DataConfig
from equipoise.experiment import Experiment
from equipoise.experiment.sections import Evaluation, Fault, Faults, Participation, Scripted
from equipoise.training.settings import Training

SECTIONS: tuple[type[BaseModel], ...] = (
    Experiment,
    DataConfig,
    Training,
    Participation,
    Scripted,
    Fault,
    Faults,
    Evaluation,
)


def settings() -> dict[str, dict[str, Any]]:
    return {
        section.__name__: {name: _of(field) for name, field in section.model_fields.items()}
        for section in SECTIONS
    }


def _of(field: Any) -> str:
    default = (
        "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
    )
    return ", ".join([default, *map(str, field.metadata)])


def test_defaults_and_bounds_are_those_that_users_know() -> None:
    assert settings() == yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text())


if __name__ == "__main__":
    print(yaml.safe_dump(settings(), sort_keys=False, width=160), end="")
