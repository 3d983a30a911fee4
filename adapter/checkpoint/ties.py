"""Tensors of a checkpoint that have several names: stored once, their further names written among the metadata.

Source: `save_model` and `load_model` of the safetensors reference implementation, and `save_torch_state_dict` of
huggingface_hub: each name that is left out stands in `__metadata__` with the name that is kept as its text.
"""

from __future__ import annotations

from collections.abc import Container, Mapping


def aliases(metadata: Mapping[str, str], tensors: Container[str]) -> dict[str, str]:
    """Further name → the name under which the tensor is stored.

    Args:
        metadata: Texts of the header.
        tensors: Names of the tensors that are stored, in any shard. A text that is none of them says something else
            (`{"format": "pt"}`), and a name that is stored itself needs no other.
    """
    return {name: kept for name, kept in metadata.items() if kept in tensors and name not in tensors}
