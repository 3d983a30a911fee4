"""Every dtype of the safetensors format: its name in the file, its width in bits, its name in torch.

Source: the enum `Dtype` of the safetensors reference implementation 0.8 and its torch bindings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Dtype:
    """One dtype of the format."""

    name: str
    """As the header writes it: `BF16`."""
    bits: int
    """Width of one element; 4 and 6 for the packed ones."""
    torch_name: str
    """The attribute of torch that has it: `bfloat16`. The installed torch may lack it, above all the 6-bit ones."""
    per_item: int = 1
    """Elements that one torch item holds: 2 for the packed 4-bit dtype, whose last dimension torch gives halved."""

    def torch_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape torch gives a tensor of this logical shape: the same, or `[2, 8]` → `[2, 4]` where packed.

        Returns:
            None where a packed tensor's last dimension is odd: the file is valid, torch has no such view.
        """
        if self.per_item == 1:
            return shape
        if not shape or shape[-1] % self.per_item:
            return None
        return (*shape[:-1], shape[-1] // self.per_item)


DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            Dtype("BOOL", 8, "bool"),
            Dtype("F4", 4, "float4_e2m1fn_x2", per_item=2),
            Dtype("F6_E2M3", 6, "float6_e2m3fn"),
            Dtype("F6_E3M2", 6, "float6_e3m2fn"),
            Dtype("U8", 8, "uint8"),
            Dtype("I8", 8, "int8"),
            Dtype("F8_E5M2", 8, "float8_e5m2"),
            Dtype("F8_E4M3", 8, "float8_e4m3fn"),
            Dtype("F8_E8M0", 8, "float8_e8m0fnu"),
            Dtype("F8_E4M3FNUZ", 8, "float8_e4m3fnuz"),
            Dtype("F8_E5M2FNUZ", 8, "float8_e5m2fnuz"),
            Dtype("I16", 16, "int16"),
            Dtype("U16", 16, "uint16"),
            Dtype("F16", 16, "float16"),
            Dtype("BF16", 16, "bfloat16"),
            Dtype("I32", 32, "int32"),
            Dtype("U32", 32, "uint32"),
            Dtype("F32", 32, "float32"),
            Dtype("C64", 64, "complex64"),
            Dtype("F64", 64, "float64"),
            Dtype("I64", 64, "int64"),
            Dtype("U64", 64, "uint64"),
        )
    }
)
"""Name in the file → dtype; complete for format readers up to 0.8. Any other name is refused."""
