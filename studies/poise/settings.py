"""Data, sizes and training of the studies of Poise. PROTOCOL.md explains them."""

from __future__ import annotations

from typing import Any

from equipoise.data import Dataset, from_arrays

_FASHION = {"name": "fashion_mnist", "samples": 26800, "split": (0.15, 0.03, 0.82), "clients": 10}
_ALL = {
    "name": "fashion_mnist",
    "split": (0.15, 0.03, 0.82),
    "clients": 10,
}  # for partitions that take a fraction themselves
_TRAINING = {"optimiser": "adam", "lr": 0.001, "batch": 32, "epochs": 1}
_COMMON: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [100]},
    "training": _TRAINING,
    "evaluation": {"every": 0, "splits": ["validation", "test"], "metrics": ["accuracy"]},
    "rounds": 15,
    "workers": 0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "pow": {"data": {**_ALL, "partition": "pow:0.3829"}},
    "dirichlet-0.1": {"data": {**_FASHION, "partition": "dirichlet:0.1"}},
    "dirichlet-0.5": {"data": {**_FASHION, "partition": "dirichlet:0.5"}},
    "ics-5": {"data": {**_ALL, "partition": "ics:5,fraction=0.3829"}},
    "part": {
        "data": {**_FASHION, "partition": "dirichlet:0.3", "clients": 20},
        "participation": {"number": 5},
        "rounds": 30,
    },
    "digits": {
        "data": {
            "name": "digit_domains_subset",
            "partition": "domains:0.03",
            "clients": 8,
            "split": (0.85, 0.15, 0.0),
            "test": "site",
            "image_size": 20,
        }
    },
    "hospitals": {
        "data": {"name": "uci_heart_disease", "partition": "natural", "split": (0.5, 0.2, 0.3)},
        "training": {**_TRAINING, "batch": 16},
        "rounds": 30,
    },
    "cifar": {
        "data": {
            "name": "cifar10",
            "samples": 26800,
            "split": (0.15, 0.03, 0.82),
            "clients": 10,
            "partition": "dirichlet:0.5",
        }
    },
}
REGRESSION: dict[str, dict[str, Any]] = {
    "diabetes": {
        "data": {
            "name": "diabetes",
            "partition": "dirichlet_bins:0.5",
            "clients": 5,
            "split": (0.5, 0.2, 0.3),
            "normalise": "pooled",
        },
        "training": {**_TRAINING, "lr": 0.003, "batch": 16, "epochs": 2},
        "rounds": 30,
    },
    "retina": {
        "data": {
            "name": "retinamnist",
            "task": "regression",
            "partition": "dirichlet_bins:0.5",
            "clients": 5,
            "split": (0.5, 0.15, 0.35),
            "pool": "all",
        }
    },
}
OTHER_DATA: dict[str, dict[str, Any]] = {
    "office": {
        "data": {
            "name": "office_caltech10",
            "partition": "natural",
            "split": (0.5, 0.15, 0.35),
            "image_size": 32,
        },
        "rounds": 30,
    },
    "breast": {
        "data": {
            "name": "breastmnist",
            "partition": "dirichlet:0.5",
            "clients": 5,
            "split": (0.5, 0.15, 0.35),
            "pool": "all",
        },
    },
    "retina-classes": {
        "data": {
            "name": "retinamnist",
            "partition": "dirichlet:0.5",
            "clients": 5,
            "split": (0.5, 0.15, 0.35),
            "pool": "all",
        },
    },
    "acs": {
        "data": {"name": "acs_income", "partition": "natural", "split": (0.15, 0.03, 0.82)},
    },
}
# A small setting for the script of robustness.
SMALL: dict[str, dict[str, Any]] = {
    "small": {
        "data": {
            "name": "digits",
            "partition": "dirichlet:0.5",
            "clients": 10,
            "split": (0.4, 0.1, 0.5),
        },
        "training": {**_TRAINING, "lr": 0.005, "batch": 16},
    },
}


def config(
    setting: str, method: Any, seed: int, model: str = "mlp", **changes: Any
) -> dict[str, Any]:
    """Return the settings of an experiment.

    Args:
        setting: The name of the setting.
        method: The method.
        seed: The seed.
        model: The network.
        **changes: Changes with dotted keys.
    """
    named = SETTINGS | REGRESSION | OTHER_DATA | SMALL
    experiment = {**_COMMON, **named[setting], "method": method, "seed": seed}
    if setting in REGRESSION:
        experiment["evaluation"] = {**experiment["evaluation"], "metrics": ["rmse"]}
    if model != "mlp":
        experiment["model"] = model
    for key, value in changes.items():
        section, _, name = key.partition(".")
        experiment[section] = {**experiment[section], name: value} if name else value
    return experiment


def diabetes() -> Dataset:
    """Return the 442 patients of scikit-learn's data set on the progression of diabetes."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    return from_arrays(
        data.data, data.target, kind="regression", name="diabetes", columns=data.feature_names
    )
