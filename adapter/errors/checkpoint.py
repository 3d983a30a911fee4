"""A checkpoint is not what it should be."""

from __future__ import annotations

from adapter.errors.base import AdapterError


class CheckpointError(AdapterError):
    """The checkpoint is not what it should be. Fields: file, tensor, rule."""

    code = "checkpoint"
    exit_code = 30


class NotSafetensors(CheckpointError):
    """The file is not a safetensors file; the message says what it looks like."""

    code = "checkpoint.not_safetensors"
    exit_code = 31


class HeaderError(CheckpointError):
    """The header breaks a rule of the format, named in the field `rule`."""

    code = "checkpoint.header"
    exit_code = 32


class WeightIndexError(CheckpointError):
    """The weight index is malformed, names a file it must not, or a file that is missing."""

    code = "checkpoint.index"
    exit_code = 33


class UnsupportedDtype(CheckpointError):
    """The installed torch has no such dtype (or no view for it)."""

    code = "checkpoint.dtype"
    exit_code = 34


class MissingTensor(CheckpointError):
    """The checkpoint has no tensor of that name, or the model wants one it does not hold."""

    code = "checkpoint.missing_tensor"
    exit_code = 35


class TensorMismatch(CheckpointError):
    """A tensor's shape is not what the model wants, or the checkpoint holds tensors the model does not want."""

    code = "checkpoint.mismatch"
    exit_code = 36


class ChecksumMismatch(CheckpointError):
    """What arrived is not what its checksum says, or there is none to ask. Fields: file, algorithm, expected, found."""

    code = "checkpoint.checksum"
    exit_code = 37


class NotConvertible(CheckpointError):
    """A pickled checkpoint holds what safetensors cannot represent, or what only running its code would make."""

    code = "checkpoint.not_convertible"
    exit_code = 38
