"""The weights of a model: tensors by name while the checkpoint still streams, and the files beside it."""

from adapter.weights.mapping import Weights
from adapter.weights.objects import TensorNotFound, UseOrder

__all__ = ["TensorNotFound", "UseOrder", "Weights"]
