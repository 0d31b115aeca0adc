"""Federated training for the virtual testbed: many clients at once, exactly repeatable."""

from .averaging import Updates, Weighting, aggregate, merged
from .blas import blas_threads, one_blas_thread
from .datasets import LearningData, dataset_names, load
from .errors import LearningError, SettingError, ShapeError
from .losses import Loss
from .models import Linear, Mlp, Model
from .partition import Partition, dirichlet, few_labels, iid, iid_for
from .trainer import FederatedTrainer

__all__ = [
    "FederatedTrainer",
    "LearningData",
    "LearningError",
    "Linear",
    "Loss",
    "Mlp",
    "Model",
    "Partition",
    "SettingError",
    "ShapeError",
    "Updates",
    "Weighting",
    "aggregate",
    "blas_threads",
    "dataset_names",
    "dirichlet",
    "few_labels",
    "iid",
    "iid_for",
    "load",
    "merged",
    "one_blas_thread",
]
