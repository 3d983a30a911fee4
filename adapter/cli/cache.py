"""`coldstart cache ls | verify | prune | rm | pin | unpin`: what is kept between starts, and room for more."""

from __future__ import annotations

import json
import os
import re
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adapter.cli import Subparsers
from adapter.cli.plain_text import parse_bytes, printable, readable_bytes, table
from adapter.errors import CacheError, ChecksumMismatch, ConfigurationError
from adapter.settings import Settings

if TYPE_CHECKING:
    from adapter.streaming.cache import Cache
    from adapter.streaming.eviction import CachedObject

_DAY_S = 86400.0
_SHORT_DIGEST = 12
_DIGEST = re.compile(r"[0-9a-f]{6,40}")
"""Six digits tell a million objects apart, and no address looks like that."""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "cache",
        description="Weights that are kept between starts (COLDSTART_CACHE_DIR). WHICH is the beginning of an address "
        "(s3://bucket/model/) or of an object's digest as `ls` shows it.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, text: str, act: object, *, which: str | None) -> ArgumentParser:
        found = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if which is not None:
            found.add_argument("which", metavar="WHICH", nargs=which)
        found.add_argument("--cache-dir", metavar="DIR", type=Path, help="of this cache (COLDSTART_CACHE_DIR)")
        found.add_argument("--json", action="store_true", help="one JSON object")
        found.set_defaults(run=run, act=act)
        return found

    command("ls", "show what is there, what was used last first", _ls, which="*")
    command("verify", "read files and compare them with their checksums", _verify, which="*")
    prune = command("prune", "remove what was used longest ago and is neither pinned nor in use", _prune, which=None)
    prune.add_argument("--to", metavar="SIZE", help="until no more than this is kept (20GB)")
    prune.add_argument("--free", metavar="SIZE", help="until so much of the disk is free")
    prune.add_argument("--older", metavar="DAYS", type=float, help="what was not used for so long")
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    rm = command("rm", "remove objects", _rm, which="+")
    rm.add_argument("--force", action="store_true", help="also what is pinned or in use; who has it open keeps it")
    for name, text, act in (("pin", "keep objects from being evicted", _pin), ("unpin", "let them go again", _unpin)):
        command(name, text, act, which="+").add_argument("--name", default="user", help="who needs them (user)")


def run(arguments: Namespace) -> int:
    """What the command within `cache` gives: an exit code.

    Raises:
        CacheError, ChecksumMismatch, ConfigurationError: The cache cannot be used, a file is damaged, nothing fits.
    """
    return int(arguments.act(arguments))


def _ls(arguments: Namespace) -> int:
    cache = _cache(arguments)
    objects = sorted(_chosen(cache, arguments.which), key=lambda each: -each.used_s)
    if arguments.json:
        _print_json(cache, objects=[_value(each) for each in objects])
        return 0
    now_s = time.time()
    rows = [("OBJECT", "SIZE", "USED", "STATE", "ADDRESS")]
    rows += [
        (
            each.digest[:_SHORT_DIGEST],
            readable_bytes(each.bytes_on_disk),
            _ago(now_s - each.used_s),
            _state(each),
            printable(each.title),
        )
        for each in objects
    ]
    taken = readable_bytes(sum(each.bytes_on_disk for each in objects))
    print("\n".join(table(rows, frozenset({1})) if objects else []), end="\n" if objects else "")
    print(f"{len(objects)} objects, {taken} in {cache.root}")
    return 0


def _verify(arguments: Namespace) -> int:
    """Compare; what is damaged counts no longer as complete, so that the next start fetches the damaged parts."""
    cache = _cache(arguments)
    results = [(each, _check(cache, each)) for each in _chosen(cache, arguments.which) if each.published is not None]
    damaged = [each for each, (state, _) in results if state == "damaged"]
    if arguments.json:
        _print_json(
            cache,
            objects=[_value(each) | {"checked": state, "ranges": ranges} for each, (state, ranges) in results],
        )
    else:
        for each, (state, ranges) in results:
            where = f": bytes {', '.join(ranges)}" if ranges else ""
            print(f"{state:<8}  {each.digest[:_SHORT_DIGEST]}  {printable(each.title)}{where}")
        after = "; the next start fetches the damaged parts again" if damaged else ""
        print(f"{len(results)} files, {len(damaged)} damaged{after}")
    return ChecksumMismatch.exit_code if damaged else 0


def _prune(arguments: Namespace) -> int:
    from adapter.streaming.budget import room
    from adapter.streaming.eviction import by_last_use, cached_objects, evict, remove_empty

    cache = _cache(arguments)
    most, least = (_size(name, getattr(arguments, name)) for name in ("to", "free"))
    if most is None and least is None and arguments.older is None:
        most, least = cache.budget.limit_bytes, cache.budget.floor_bytes
    objects = list(cached_objects(cache))
    kept_bytes = sum(each.bytes_on_disk for each in objects)
    free_bytes = room(cache.objects, cache.budget).free_bytes if objects else 0
    gone: list[CachedObject] = []
    for each in by_last_use(objects, ()):
        old = arguments.older is not None and time.time() - each.used_s > arguments.older * _DAY_S
        if not (old or (most is not None and kept_bytes > most) or (least is not None and free_bytes < least)):
            continue
        if each.is_used() if arguments.dry_run else not evict(each):
            continue
        gone.append(each)
        kept_bytes -= each.bytes_on_disk
        free_bytes += each.bytes_on_disk
    if not arguments.dry_run:
        remove_empty(cache, older_s=_DAY_S)
    _tell_removed(arguments, cache, gone, "would be removed" if arguments.dry_run else "removed")
    return 0


def _rm(arguments: Namespace) -> int:
    from adapter.streaming.eviction import evict

    cache = _cache(arguments)
    objects = _chosen(cache, arguments.which)
    gone = [each for each in objects if evict(each, force=arguments.force)]
    _tell_removed(arguments, cache, gone, "removed")
    if kept := [each for each in objects if each not in gone]:
        names = ", ".join(printable(each.title) for each in kept[:5])
        raise CacheError(
            f"{len(kept)} objects are pinned or in use and were kept ({names}); --force removes them all the same",
            path=str(cache.root),
        )
    return 0


def _pin(arguments: Namespace) -> int:
    from adapter.streaming.pins import pin

    cache = _cache(arguments)
    objects = _chosen(cache, arguments.which)
    for each in objects:
        pin(each.directory, arguments.name, "coldstart cache pin")
    _tell_removed(arguments, cache, objects, "pinned")
    return 0


def _unpin(arguments: Namespace) -> int:
    from adapter.streaming.pins import unpin

    cache = _cache(arguments)
    objects = _chosen(cache, arguments.which)
    for each in objects:
        unpin(each.directory, arguments.name)
    _tell_removed(arguments, cache, objects, "unpinned")
    return 0


def _cache(arguments: Namespace) -> Cache:
    from adapter.streaming.cache import Cache

    return Cache.of(Settings.from_env(os.environ).with_(cache_dir=arguments.cache_dir))


def _chosen(cache: Cache, which: Sequence[str]) -> list[CachedObject]:
    from adapter.streaming.eviction import cached_objects

    objects = list(cached_objects(cache))
    chosen: dict[str, CachedObject] = {}
    for word in which:
        found = [
            each
            for each in objects
            if each.title.startswith(word) or (_DIGEST.fullmatch(word) and each.digest.startswith(word))
        ]
        if not found:
            raise CacheError(f"nothing in {cache.root} is called {word}", path=str(cache.root))
        chosen |= {each.digest: each for each in found}
    return list(chosen.values()) if which else objects


def _check(cache: Cache, found: CachedObject) -> tuple[str, list[str]]:
    if found.record is None:
        return "unknown", []
    slot = cache.slot(found.record.identity)
    bad = slot.damaged()
    if bad is None:
        return "unknown", []
    if bad:
        slot.distrust()
    return ("damaged" if bad else "ok"), [str(each) for each in bad]


def _state(found: CachedObject) -> str:
    words = ["complete" if found.published is not None else "filling" if found.filling else "no record"]
    if found.published is not None and found.record is not None and not found.record.synced:
        words.append("not synced")
    if found.pins:
        words.append(f"pinned by {', '.join(found.pins)}")
    if found.is_used():
        words.append("in use")
    return ", ".join(words)


def _value(found: CachedObject) -> dict[str, object]:
    record = found.record
    checksums = record.checksums if record is not None else None
    return {
        "digest": found.digest,
        "address": record.identity.key if record is not None else None,
        "version": record.identity.version if record is not None else None,
        "size_bytes": record.identity.size_bytes if record is not None else None,
        "bytes_on_disk": found.bytes_on_disk,
        "complete": found.published is not None,
        "filling": found.filling,
        "synced": record.synced if record is not None else None,
        "checksum": {"algorithm": checksums.algorithm.name, "value": checksums.algorithm.text(checksums.whole)}
        if checksums is not None
        else None,
        "used_at": found.used_s,
        "in_use": found.is_used(),
        "pins": list(found.pins),
    }


def _tell_removed(arguments: Namespace, cache: Cache, objects: Iterable[CachedObject], what: str) -> None:
    there = list(objects)
    taken = sum(each.bytes_on_disk for each in there)
    if arguments.json:
        names = [{"digest": each.digest, "title": each.title, "bytes_on_disk": each.bytes_on_disk} for each in there]
        _print_json(cache, what=what, bytes=taken, objects=names)
        return
    for each in there:
        print(f"{what}  {each.digest[:_SHORT_DIGEST]}  {readable_bytes(each.bytes_on_disk)}  {printable(each.title)}")
    print(f"{what}: {len(there)} objects, {readable_bytes(taken)}")


def _print_json(cache: Cache, **values: object) -> None:
    print(json.dumps({"cache": str(cache.root), **values}, ensure_ascii=False))


def _size(name: str, text: str | None) -> int | None:
    try:
        return parse_bytes(text) if text is not None else None
    except ValueError as error:
        raise ConfigurationError(f"--{name}: {error}", flag=name) from None


def _ago(seconds: float) -> str:
    for unit, length_s in (("d", _DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit} ago"
    return "now"
