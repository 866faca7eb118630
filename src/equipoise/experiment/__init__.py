"""The configuration of a run, checked once, at the edge."""

from equipoise.experiment.experiment import OWN_DATA, Experiment, experiment
from equipoise.experiment.files import ConfigurationError, flat, load, with_settings
from equipoise.experiment.sections import Evaluation, Faults, Participation

__all__ = [
    "OWN_DATA",
    "ConfigurationError",
    "Evaluation",
    "Experiment",
    "Faults",
    "Participation",
    "experiment",
    "flat",
    "load",
    "with_settings",
]
