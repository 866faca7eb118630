"""Settings, methods and seeds of both studies of Poise. The protocols say why."""

from __future__ import annotations

from typing import Any

TUNING, LIARS, REPORT = (100, 101), (200, 201, 202), (0, 1, 2, 3, 4)

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
# Further data of the test of the second form.
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
NUMBERS = ("standalone", "standalone, other numbers", "fedavg", "finetune", "poise", "poise, plain")
WITH_LENET = ("dirichlet-0.5", "ics-5", "digits", "cifar")
WITH_MLP = tuple(name for name in SETTINGS if name != "cifar")

METHODS: dict[str, dict[str, Any]] = {
    "standalone": {"name": "standalone"},
    "standalone, other numbers": {"name": "standalone"},
    "fedavg": {"name": "fedavg"},
    "finetune": {"name": "finetune"},
    "poise": {"name": "poise", "variant": "one"},
    "ditto": {"name": "ditto"},
    "fedprox": {"name": "fedprox"},
    "fedakd": {"name": "fedakd"},
    "fedekd": {"name": "fedekd"},
    "kdia": {"name": "kdia", "preset": "quick"},
    "corefed": {"name": "corefed", "rep": "literal"},
    "fedequilibria": {"name": "fedequilibria"},
    "pfedck": {"name": "pfedck"},
    "fedas": {"name": "fedas"},
    "feddc": {"name": "feddc"},
    "standalone + validation": {"name": "standalone"},
    "fedavg + validation": {"name": "fedavg"},
    "finetune + validation": {"name": "finetune"},
}
GRID: dict[str, dict[str, list[Any]]] = {  # the first value is the default
    "finetune": {"method.tune_epochs": [5, 2, 10]},
    "ditto": {"method.pull": [0.1, 1.0]},
    "fedprox": {"method.mu": [0.01, 0.1]},
    "fedakd": {"method.alpha": [1.0, 0.3]},
    "fedekd": {"method.lambda_kd": [1.0, 0.3]},
    "feddc": {"training.lr": [0.05, 0.1]},
}
_PLAIN = {"name": "poise", "variant": "one", "fold": False}
ABLATIONS: dict[str, dict[str, Any]] = {
    "without alone": {**_PLAIN, "alone": False},
    "without offsets": {**_PLAIN, "offsets": False},
    "without tuned": {**_PLAIN, "tune_epochs": 0},
    "without the federated prior": {**_PLAIN, "min_validation": 10**9},
    "equal weights": {**_PLAIN, "min_validation": 10**9, "kappa": 1e12},
    "merit 0.5": {**_PLAIN, "merit": 0.5},
}  # and the hard choice, which is a method of the study's own


def config(
    setting: str, method: Any, seed: int, model: str = "mlp", **changes: Any
) -> dict[str, Any]:
    """An experiment; `changes` have dotted keys."""
    known = SETTINGS | REGRESSION | OTHER_DATA | SMALL
    found = {**_COMMON, **known[setting], "method": method, "seed": seed}
    if setting in REGRESSION:
        found["evaluation"] = {**found["evaluation"], "metrics": ["rmse"]}
    if model != "mlp":
        found["model"] = model
    for key, value in changes.items():
        section, _, name = key.partition(".")
        found[section] = {**found[section], name: value} if name else value
    return found
