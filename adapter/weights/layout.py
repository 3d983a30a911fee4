"""A directory in which a checkpoint's files have their own names again: links into the cache, kept beside it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from adapter.errors import CacheError

_LAYOUTS = "layouts"


def lay_out(targets: Mapping[str, Path], objects: Path, owned: ExitStack) -> Path:
    """The directory; made once for these very files, and found again by later starts under the same path.

    Where the cache cannot be written it is a temporary one, removed when `owned` is closed.

    Args:
        targets: Relative name → published file.
        objects: Where the cache keeps its objects.
        owned: Gets the clean-up, where one is needed.

    Raises:
        CacheError: Two names exclude each other (`a` and `a/b`), or there is nowhere to write.
    """
    listed = "\0".join(f"{name}\0{target}" for name, target in sorted(targets.items()))
    final = objects.parent / _LAYOUTS / hashlib.sha256(listed.encode()).hexdigest()[:40]
    if _is_whole(final, targets):
        return final
    try:
        try:
            final.parent.mkdir(mode=0o700, exist_ok=True)
            return _published(Path(tempfile.mkdtemp(prefix=".making-", dir=final.parent)), final, targets)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return _temporary(targets, owned)
    except OSError as error:
        raise CacheError(f"the files cannot be laid out in {final.parent}: {error}", path=str(final)) from error


def _published(making: Path, final: Path, targets: Mapping[str, Path]) -> Path:
    try:
        _link(making, targets)
        if final.exists():  # of files that were evicted and fetched again, or left half-removed
            shutil.rmtree(final, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process was quicker with the same
            making.rename(final)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    if not _is_whole(final, targets):
        raise OSError(f"{final} is changed by somebody else")
    return final


def _temporary(targets: Mapping[str, Path], owned: ExitStack) -> Path:
    made = tempfile.TemporaryDirectory(prefix="coldstart-weights-")
    owned.callback(made.cleanup)
    _link(Path(made.name), targets)
    return Path(made.name)


def _link(directory: Path, targets: Mapping[str, Path]) -> None:
    for name, target in targets.items():
        link = directory / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def _is_whole(directory: Path, targets: Mapping[str, Path]) -> bool:
    try:
        return all(os.readlink(directory / name) == str(target) for name, target in targets.items())
    except OSError:
        return False
