"""What is shown of an address: all that names the place, and nothing secret."""

from __future__ import annotations

import pytest

from adapter.errors import ConfigurationError
from adapter.storage.addresses import parse_s3, shown_address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://KEY:SECRET@bucket/prefix/", "s3://bucket/prefix/"),
        ("S3://KEY:SECRET@bucket/prefix/", "S3://bucket/prefix/"),
        ("s3://KEY@bucket/", "s3://bucket/"),
        ("s3://KEY:SEC/RET+x=@bucket/prefix/", "s3://bucket/prefix/"),
        ("s3://KEY:/SEC/RET@bucket/a@b", "s3://bucket/a@b"),
        ("s3://bucket/m.safetensors?X-Amz-Expires=9&X-Amz-Signature=SECRET", "s3://bucket/m.safetensors"),
        ("s3://bucket/m?AWSAccessKeyId=SECRET", "s3://bucket/m"),
        ("s3://bucket/m?session_token=SECRET", "s3://bucket/m"),
        ("https://user:SECRET@host/x/", "https://host/x/"),
        ("https://user:SEC/RET@host/x/", "https://host/x/"),
        ("https://host/x?sig=SECRET", "https://host/x"),
        ("https://host/x#SECRET", "https://host/x"),
        ("https://user:SECRET@[::1/x", "https://[::1/"),
        ("hf://user:SECRET@org/model", "hf://org/model"),
        ("hf://user:SEC/RET@org/model@main", "hf://org/model@main"),
    ],
)
def test_a_secret_is_left_out(address: str, shown: str) -> None:
    assert shown_address(address) == shown


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/a@b/c:d@e/",
        "s3://bucket/key?",
        "s3://bucket/m.safetensors?versionId=a.b_c",
        "s3://bucket/prefix/?anonymous",
        "s3://bucket/what?not=this",
        "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/name/a@b/",
        "https://host:8443/x@y/",
        "https://[::1]:80/x@y/",
        "hf://org/model@revision",
        "file:///home/me@work/x:y@z",
        "/home/me@work",
        "memory://a@b",
    ],
)
def test_all_else_stays(address: str) -> None:
    assert shown_address(address) == address


@pytest.mark.parametrize("address", ["s3://KEY:SECRET@bucket/p/", "s3://KEY:SEC/RET@bucket/p/", "s3://KEY:SECRET/p/"])
def test_an_address_with_keys_is_refused_without_a_word_of_them(address: str) -> None:
    with pytest.raises(ConfigurationError, match="AWS_SECRET_ACCESS_KEY") as caught:
        parse_s3(address)
    if "@" in address:
        assert "SEC" not in str(caught.value).replace("AWS_SECRET_ACCESS_KEY", "")
        assert "SEC" not in str(caught.value.fields)
