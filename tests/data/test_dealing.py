"""Bounds of dealing, and what a federation's recipe says."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.data import DataConfig, federate, from_arrays
from equipoise.data.transforms import NORMALISATIONS


def test_there_may_be_as_many_clients_as_samples() -> None:
    data = from_arrays(np.zeros((12, 2)), np.arange(12) % 2, class_names=("no", "yes"))
    whole = {"partition": "iid", "split": (1.0, 0.0, 0.0), "duplicates": "separate"}
    assert federate(DataConfig(clients=12, **whole), 0, data).train.sizes.tolist() == [1] * 12
    with pytest.raises(ValueError, match="data.clients: expected at most 12, the number of samples that are dealt from arrays, got 13"):
        federate(DataConfig(clients=13, **whole), 0, data)


def test_a_recipe_names_the_classes() -> None:
    data = from_arrays(np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2, class_names=("no", "yes"))
    assert federate(DataConfig(clients=2), 0, data).recipe["class_names"] == ["no", "yes"]


def test_normalisations_are_those_of_the_papers() -> None:
    """Written down a second time, with four digits, as the papers' codes print them."""
    known = {
        "none": ([0], [1]),
        "half": ([0.5], [0.5]),
        "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        "cifar10": ([0.4914, 0.4824, 0.4467], [0.2471, 0.2435, 0.2616]),
        "cifar10_corefed": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
        "cifar100": ([0.5071, 0.4866, 0.4409], [0.2673, 0.2564, 0.2762]),
        "cinic10": ([0.4789, 0.4723, 0.4305], [0.2421, 0.2383, 0.2588]),
    }
    assert NORMALISATIONS.keys() == known.keys()
    for name, (mean, deviation) in known.items():
        assert NORMALISATIONS[name][0] == pytest.approx(mean, abs=1e-4) and NORMALISATIONS[name][1] == pytest.approx(deviation, abs=1e-4)
