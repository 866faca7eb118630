"""Data: sets, partitions, splits and preparation.

>>> federation = federate(DataConfig(name="digits", partition="dirichlet:0.3", clients=5), seed=1)
>>> len(federation.ids), federation.task.shape
(5, (1, 8, 8))
"""

from __future__ import annotations

from equipoise.data.arrays.image_folders import from_image_folder
from equipoise.data.arrays.objects import from_frame, from_huggingface, from_torch
from equipoise.data.arrays.transforms import augment
from equipoise.data.arrays.user_data import from_arrays, from_sites
from equipoise.data.config import DataConfig
from equipoise.data.dataset import Column, Dataset
from equipoise.data.federation import Federation, Parts
from equipoise.data.pipeline import federate, load, prepare_client
from equipoise.data.preparation import inputs_from
from equipoise.data.tables.table_dataset import from_tables

__all__ = [
    "Column",
    "DataConfig",
    "Dataset",
    "Federation",
    "Parts",
    "augment",
    "federate",
    "from_arrays",
    "from_frame",
    "from_huggingface",
    "from_image_folder",
    "from_sites",
    "from_tables",
    "from_torch",
    "inputs_from",
    "load",
    "prepare_client",
]
