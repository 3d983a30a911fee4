"""`coldstart push DIR URI`: a checkpoint into object storage, in parts that readers' ranges fit."""

from __future__ import annotations

import os
import signal
import threading
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from adapter.cli import Subparsers
from adapter.cli.plain_text import printable, readable_bytes
from adapter.cli.progress import Telling, amount
from adapter.errors import ConfigurationError
from adapter.settings import Settings

if TYPE_CHECKING:
    from adapter.storage.s3_upload import Checksum, Uploaded
    from adapter.streaming.push import PushPlan

CHECKSUMS = ("auto", "crc64nvme", "crc32", "md5")


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "push",
        description="Send the checkpoint in DIR, and the files beside it, to an S3 store. Its headers are checked "
        "first, every part carries a checksum that the store compares, and the index goes last. What is there with "
        "the same content is not sent again; a part upload that fails is aborted.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="a directory with a safetensors checkpoint")
    parser.add_argument("address", metavar="URI", help="s3://bucket/prefix/")
    parser.add_argument(
        "--checksum",
        choices=CHECKSUMS,
        default="auto",
        help="what parts are checked with: auto is crc64nvme with the extra crc, else crc32; md5 is for stores that "
        "know neither (default: %(default)s)",
    )
    parser.add_argument("--all", action="store_true", help="send also what is there already")
    parser.add_argument("--connections", metavar="N", type=int, help="parts in flight (COLDSTART_CONNECTIONS)")
    parser.add_argument("--json", action="store_true", help="JSON lines also on a terminal")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Push; 0 when all of it is there.

    Raises:
        CheckpointError: A start would refuse this checkpoint.
        StorageError: It could not be sent.
        ConfigurationError: The address is none of an S3 store.
    """
    from adapter.storage.addresses import shown_address
    from adapter.storage.s3 import S3Options
    from adapter.storage.s3_upload import S3Target, UploadOptions
    from adapter.streaming.push import plan_push

    address = shown_address(arguments.address)
    if not arguments.address.startswith("s3://"):
        raise ConfigurationError(f"{address}: push sends to s3://bucket/prefix/ only", address=address)
    settings = Settings.from_env(os.environ).with_(connections=arguments.connections and max(1, arguments.connections))
    options = UploadOptions(
        checksum=_checksum(arguments.checksum),
        read_bytes=settings.part_bytes,
        connections=settings.connections,
        always=arguments.all,
    )
    plan = plan_push(arguments.directory, header_limit_bytes=settings.header_limit_bytes)
    # ended by SIGTERM as by Ctrl-C: what was begun in the store is aborted first
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun_s = time.monotonic()
    with (
        Telling("push", json_lines=arguments.json) as telling,
        S3Target(
            arguments.address,
            S3Options(
                connections=settings.connections,
                requester_pays=settings.requester_pays,
                customer_key=settings.customer_key,
                credentials_timeout_s=settings.credentials_timeout_s,
            ),
        ) as target,
    ):
        telling.started(
            source=str(arguments.directory),
            to=address,
            objects=len(plan.objects),
            total_bytes=plan.total_bytes,
            notes=list(plan.inspection.notes()),
        )
        sent = _Sent(telling, plan.total_bytes)
        done = [target.upload(arguments.directory / info.key, info.key, options, sent) for info in plan.objects]
        _complete(telling, address, plan, done, time.monotonic() - begun_s)
    return 0


class _Sent:
    """Adds up what several threads have sent."""

    def __init__(self, telling: Telling, total_bytes: int) -> None:
        self._telling = telling
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()

    def __call__(self, more_bytes: int) -> None:
        with self._lock:
            self._done_bytes += more_bytes
            self._telling.now(self._done_bytes, self._total_bytes)


def _complete(telling: Telling, address: str, plan: PushPlan, done: list[Uploaded], seconds: float) -> None:
    sent_bytes = sum(each.sent_bytes for each in done)
    notes = "".join(f"\nnote: {note}" for note in plan.inspection.notes())
    telling.complete(
        f"{printable(address)}: sent {amount(sent_bytes, seconds)}, {readable_bytes(plan.total_bytes - sent_bytes)} "
        f"were there{notes}",
        to=address,
        objects=len(done),
        sent_bytes=sent_bytes,
        there_bytes=plan.total_bytes - sent_bytes,
        parts=sum(each.parts for each in done),
        seconds=round(seconds, 3),
    )


def _checksum(name: str) -> Checksum | None:
    from adapter.streaming.integrity import ALGORITHMS, best_algorithm

    if name == "md5":
        return None
    chosen = best_algorithm() if name == "auto" else ALGORITHMS[name]
    if not chosen.available:
        raise ConfigurationError("crc64nvme needs the extra crc: pip install 'coldstart-adapter[crc]'")
    return chosen
