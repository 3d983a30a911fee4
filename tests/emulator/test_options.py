"""What an emulator is told, and what it makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.emulator.fleet import FleetLimits
from adapter.emulator.options import EmulatorOptions, WeightsPlan, plan_weights, replica_environment
from adapter.errors import ConfigurationError


def test_an_address_is_passed_on() -> None:
    assert plan_weights("s3://bucket/prefix/") == WeightsPlan("s3://bucket/prefix/")
    assert plan_weights(None) == WeightsPlan(None)


def test_a_directory_with_files_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "my model (v2)").mkdir()
    (tmp_path / "my model (v2)" / "config.json").write_text("{}")
    plan = plan_weights(str(tmp_path / "my model (v2)"))
    assert plan == WeightsPlan("s3://models/my-model-v2/", tmp_path / "my model (v2)", "my-model-v2")


def test_a_directory_of_directories_holds_buckets(tmp_path: Path) -> None:
    (tmp_path / "bucket" / "prefix").mkdir(parents=True)
    (tmp_path / ".hidden").write_text("")
    assert plan_weights(str(tmp_path)) == WeightsPlan(None, tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_what_is_no_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=name):
        plan_weights(str(tmp_path / name))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"target": "handlers.echo"}, "MODULE:HANDLER"),
        ({"target": ":echo"}, "MODULE:HANDLER"),
        ({"link": "1Gbps"}, "--link"),
        ({"first_byte_ms": 5.0}, "--first-byte-ms"),
        ({"limits": FleetLimits(max_replicas=0)}, "--max-replicas"),
        ({"limits": FleetLimits(idle_s=-1)}, "--idle-s"),
        ({"limits": FleetLimits(init_limit_s=0)}, "--init-limit-s"),
        ({"limits": FleetLimits(request_limit_s=float("nan"))}, "--request-limit-s"),
        ({"limits": FleetLimits(grace_s=float("inf"))}, "--grace-s"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(change: dict[str, object], word: str) -> None:
    options = EmulatorOptions(**({"target": "handlers.echo:echo"} | change))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=word):
        options.check()


def test_the_embedded_store_replaces_the_surroundings_own(tmp_path: Path) -> None:
    """Else a forgotten variable would send replicas, or their credentials, elsewhere."""
    surroundings = {"AWS_PROFILE": "mine", "AWS_ENDPOINT_URL": "http://elsewhere", "PATH": "/bin", "EDITOR": "ed"}
    weights = WeightsPlan(None, tmp_path)
    options = EmulatorOptions(target="a:b", weights=weights, environment=surroundings, extra={"AWS_REGION": "moon-1"})
    without = replica_environment(options, tmp_path, None)
    assert without["AWS_PROFILE"] == "mine"
    embedded = replica_environment(options, tmp_path, "http://127.0.0.1:9")
    assert "AWS_PROFILE" not in embedded
    assert "AWS_ENDPOINT_URL" not in embedded
    assert "EDITOR" not in embedded
    assert embedded["PATH"] == "/bin"
    assert embedded["AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:9"
    assert embedded["AWS_REGION"] == "moon-1"  # what the user says for replicas has the last word


def test_a_cache_directory_of_the_users_own_is_kept(tmp_path: Path) -> None:
    options = EmulatorOptions(target="a:b", cache_dir=tmp_path / "mine")
    assert replica_environment(options, tmp_path / "host", None)["COLDSTART_CACHE_DIR"] == str(tmp_path / "mine")


def test_the_cache_knows_the_embedded_store_by_what_it_serves(tmp_path: Path) -> None:
    """Its port is another each time."""

    def name(directory: Path, endpoint: str) -> str:
        options = EmulatorOptions(target="a:b", weights=WeightsPlan("s3://models/m/", directory, "m"))
        return replica_environment(options, tmp_path, endpoint)["COLDSTART_STORE_NAME"]

    (tmp_path / "link").symlink_to(tmp_path / "m")
    assert name(tmp_path / "m", "http://127.0.0.1:1") == name(tmp_path / "link", "http://127.0.0.1:2")
    assert name(tmp_path / "m", "http://127.0.0.1:1") != name(tmp_path / "other", "http://127.0.0.1:1")
    without = EmulatorOptions(target="a:b", environment={"COLDSTART_STORE_NAME": "mine"})
    assert replica_environment(without, tmp_path, None)["COLDSTART_STORE_NAME"] == "mine"


@pytest.mark.parametrize("given", ["", " "])
def test_weights_that_are_empty_are_not_the_current_directory(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="--weights is empty"):
        plan_weights(given)


def test_a_run_root_of_the_users_own_is_kept(tmp_path: Path) -> None:
    options = EmulatorOptions(target="a:b", environment={"COLDSTART_RUN_ROOT": "/mine"})
    assert replica_environment(options, tmp_path, None)["COLDSTART_RUN_ROOT"] == "/mine"
    fresh = EmulatorOptions(target="a:b")
    assert replica_environment(fresh, tmp_path, None)["COLDSTART_RUN_ROOT"] == str(tmp_path)
    assert replica_environment(fresh, tmp_path, None, Path("/s"))["COLDSTART_RUN_ROOT"] == "/s"
