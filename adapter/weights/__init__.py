"""The weights of a model: tensors by name while the checkpoint still streams, and the files beside it."""

from adapter.weights.mapping import TensorNotFound, UseOrder, Weights

__all__ = ["TensorNotFound", "UseOrder", "Weights"]
