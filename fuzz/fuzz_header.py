"""Any bytes as a safetensors file: a header or a typed error, and the verdict of the reference reader."""

from __future__ import annotations

from safetensors import SafetensorError, deserialize

from adapter.checkpoint.header import HeaderRule, header_length, parse_header
from adapter.errors import CheckpointError
from tests.support.safetensors_files import ATTACKS, ODDITIES

SEEDS = [attack.data for attack in ATTACKS if len(attack.data) < 4_096] + list(ODDITIES.values())
DICTIONARY = ["__metadata__", "dtype", "shape", "data_offsets", "F32", "BF16", "F4", "[0,8]", "\\ud800", "1e999", "-0"]


def check(data: bytes) -> None:
    """Raise AssertionError where our verdict and the reference's differ; any untyped error passes through."""
    _compare(data)
    _compare(len(data).to_bytes(8, "little") + data)  # else the fuzzer spends its life on the length field


def _compare(data: bytes) -> None:
    refusal: CheckpointError | None = None
    try:
        header = parse_header(data, file="fuzz", file_bytes=len(data))
    except CheckpointError as error:
        refusal = error
    else:
        assert header.total_bytes == len(data)
        assert sum(tensor.length_bytes for tensor in header.tensors.values()) == len(data) - header.data_start
        assert header.data_start == 8 + header_length(data[:8], file="fuzz", file_bytes=len(data))
    try:
        deserialize(data)  # type: ignore[no-untyped-call]
        taken = True
    except SafetensorError:
        taken = False
    rule = HeaderRule(str(refusal.fields["rule"])) if refusal else None
    assert len(str(refusal)) < 4_096
    if rule is not HeaderRule.DUPLICATE_TENSOR:  # the one rule in which we are stricter
        assert taken == (rule is None), f"reference {'takes' if taken else 'refuses'} it, we say {rule or 'taken'}"
