"""Further names of tied tensors, as far as a model asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def needed_names(names: Mapping[str, str], tied: Mapping[str, str], module: torch.nn.Module) -> dict[str, str]:
    """The names without those of tied tensors that the model lacks, or ties itself and so gets by the other name.

    Args:
        names: Name in the model → name in the checkpoint.
        tied: Further name in the checkpoint → the name under which the tensor is stored.
        module: The model.
    """
    slots = module.state_dict(keep_vars=True) if tied else {}
    in_model = {file_name: name for name, file_name in names.items()}

    def is_needed(name: str, file_name: str) -> bool:
        kept = in_model.get(tied.get(file_name, ""))
        return file_name not in tied or (name in slots and (kept is None or slots[name] is not slots.get(kept)))

    return {name: file_name for name, file_name in names.items() if is_needed(name, file_name)}
