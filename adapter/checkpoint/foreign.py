"""What a file that is no safetensors file looks like, told from its first bytes."""

from __future__ import annotations

import re

_BINARY: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive, probably a PyTorch checkpoint (.pt, .bin)"),
    (b"GGUF", "a GGUF model"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array (.npy)"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"\x1f\x8b", "gzip-compressed data"),
)
_HTML = re.compile(rb"\s*<(!doctyp|html|head|body|!--)", re.IGNORECASE)
_XML = re.compile(rb"\s*<(\?xml|error|[a-z])", re.IGNORECASE)
_LFS = b"version https://git-lfs"
_LFS_ADVICE = "a git-LFS pointer: the file itself was never fetched (git lfs pull)"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_TEXT = re.compile(rb"[\t\n\r\x20-\x7e]{8,}")
_SAMPLE_BYTES = 512
_SMALL_LENGTH = 1 << 32
"""A length field under this has zeros in its upper half: so it is hardly text, and may well be a length."""


def describe_non_safetensors(first: bytes | memoryview) -> str | None:
    """What the file looks like ("an HTML page …"), or None where it may be a safetensors file, if a broken one.

    Args:
        first: Beginning of the file: 8 bytes tell much, 64 nearly all.
    """
    sample = bytes(first[:_SAMPLE_BYTES])
    if not sample:
        return "an empty file"
    if not sample.strip(b"\0") and len(sample) > 8:
        return "a file that was never filled in: it begins with zeros only (interrupted copy?)"
    if int.from_bytes(sample[:8], "little") < _SMALL_LENGTH and sample[8:].lstrip(b" \t\r\n")[:1] in (b"{", b""):
        return None  # begins as a safetensors file does, whatever its length field happens to spell
    for magic, what in _BINARY:
        if sample.startswith(magic):
            return what
    if _PICKLE.match(sample):
        return "a Python pickle, probably a PyTorch checkpoint (.pt, .bin)"
    return _describe_text(sample)


def _describe_text(sample: bytes) -> str | None:
    if sample.startswith(_LFS) or _LFS.startswith(sample):
        return _LFS_ADVICE
    if _HTML.match(sample):
        return "an HTML page, probably an error or login page"
    if _XML.match(sample):
        return "an XML document, probably an error answer of the store"
    if sample.lstrip()[:1] in (b"{", b"["):
        return "a JSON document"
    if _TEXT.fullmatch(sample[:64]):
        return "plain text"
    return None
