from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from adapter.errors import ConfigurationError
from adapter.settings import Secret, Settings


def test_an_empty_environment_gives_usable_settings() -> None:
    settings = Settings.from_env({})
    assert settings.port == 8080
    assert settings.weights is None
    assert settings.cache_dir.is_absolute()
    assert settings.run_root.is_absolute()


def test_every_field_is_read_from_its_variable() -> None:
    values: dict[str, tuple[str, object]] = {
        "weights": ("s3://bucket/model/", "s3://bucket/model/"),
        "anonymous": ("1", True),
        "requester_pays": ("True", True),
        "store_name": ("the store", "the store"),
        "customer_key": ("a2V5", Secret("a2V5")),
        "credentials_timeout_s": ("2.5", 2.5),
        "hub_token": ("hf_x", Secret("hf_x")),
        "hub_endpoint": ("https://mirror/hub/", "https://mirror/hub"),
        "cache_dir": ("/tmp/cache", Path("/tmp/cache")),
        "cache_fallback": ("/tmp/other", Path("/tmp/other")),
        "cache_limit_bytes": ("1", 1),
        "cache_floor_bytes": ("0", 0),
        "only_tensors": ("embed[0:10], layers.*", ("embed[0:10]", "layers.*")),
        "skip_tensors": ("*.bias", ("*.bias",)),
        "verify": ("CRC", "crc"),
        "run_root": ("/tmp/run", Path("/tmp/run")),
        "report": ("/tmp/report.json", Path("/tmp/report.json")),
        "host": ("127.0.0.1", "127.0.0.1"),
        "port": ("0", 0),
        "init_timeout_s": ("1.5", 1.5),
        "grace_s": ("0", 0.0),
        "queue_limit": ("0", 0),
        "connections": ("32", 32),
        "most_connections": ("128", 128),
        "hedge_percent": ("0", 0.0),
        "part_bytes": ("16777216", 16777216),
        "header_limit_bytes": ("8", 8),
        "worker_restarts": ("0", 0),
        "log_level": ("DEBUG", "debug"),
    }
    assert set(values) == {field.name for field in fields(Settings)}
    settings = Settings.from_env({f"COLDSTART_{name.upper()}": text for name, (text, _) in values.items()})
    assert {name: getattr(settings, name) for name in values} == {name: value for name, (_, value) in values.items()}


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("COLDSTART_PORT", "65536"),
        ("COLDSTART_PORT", "http"),
        ("PORT", "-1"),
        ("COLDSTART_CONNECTIONS", "0"),
        ("COLDSTART_CONNECTIONS", "1.5"),
        ("COLDSTART_GRACE_S", "nan"),
        ("COLDSTART_GRACE_S", "inf"),
        ("COLDSTART_GRACE_S", "-1"),
        ("COLDSTART_INIT_TIMEOUT_S", "0"),
        ("COLDSTART_PART_BYTES", "8M"),
        ("COLDSTART_LOG_LEVEL", "loud"),
        ("COLDSTART_ANONYMOUS", "maybe"),
        ("HF_ENDPOINT", "mirror"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(variable: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=variable) as caught:
        Settings.from_env({variable: text})
    assert repr(text) in caught.value.message
    assert caught.value.fields == {"variable": variable}


def test_port_of_the_platform_is_used_unless_ours_is_set() -> None:
    assert Settings.from_env({"PORT": "5000"}).port == 5000
    assert Settings.from_env({"PORT": "5000", "COLDSTART_PORT": "6000"}).port == 6000


def test_the_token_and_the_mirror_of_other_programs_are_used_unless_ours_are_set() -> None:
    told = {"HF_TOKEN": "theirs", "HF_ENDPOINT": "https://mirror"}
    assert Settings.from_env(told).hub_token == Secret("theirs")
    assert Settings.from_env(told).hub_endpoint == "https://mirror"
    assert Settings.from_env({**told, "COLDSTART_HUB_TOKEN": "ours"}).hub_token == Secret("ours")


def test_no_secret_is_shown_by_settings() -> None:
    settings = Settings.from_env(
        {
            "HF_TOKEN": "hf_hidden",
            "COLDSTART_CUSTOMER_KEY": "key_hidden",
            "COLDSTART_WEIGHTS": "https://host/m/?X-Amz-Signature=hidden",
        }
    )
    assert "hidden" not in f"{settings} {settings!r} {settings.hub_token} {settings.customer_key!r}"


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Settings.from_env({"COLDSTART_PORT": "", "PORT": ""}).port == 8080


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/coldstart"),
        ({"HOME": "/h"}, "/h/.cache/coldstart"),
    ],
)
def test_the_cache_is_where_caches_are(environment: dict[str, str], cache: str) -> None:
    assert Settings.from_env(environment).cache_dir == Path(cache)


def test_with_changes_what_is_given_and_keeps_what_is_none() -> None:
    settings = Settings.from_env({}).with_(port=1, host=None)
    assert (settings.port, settings.host) == (1, "0.0.0.0")


def test_settings_do_not_change() -> None:
    settings = Settings.from_env({})
    with pytest.raises(FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]
