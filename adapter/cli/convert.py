"""`coldstart convert IN OUT`: pickled checkpoints into safetensors that stream and map well."""

from __future__ import annotations

import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from adapter.cli import Subparsers
from adapter.cli.plain_text import parse_bytes, printable
from adapter.cli.progress import Telling, amount


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "convert",
        description="Write a checkpoint as safetensors into the new directory OUT, with a weight index where it takes "
        "several shards, and with the files beside it (config, tokenizer). Reads what torch.save wrote, without "
        "running code from it, and safetensors, to cut or align them anew. Tied weights are stored once. Every value "
        "is read back and compared before OUT appears.",
    )
    parser.add_argument("source", metavar="IN", type=Path, help="a file, or a directory with a checkpoint")
    parser.add_argument("target", metavar="OUT", type=Path, help="a directory that does not exist yet")
    parser.add_argument(
        "--shard-size",
        metavar="SIZE",
        type=_size,
        default="5GB",
        help="largest shard (default: %(default)s)",
    )
    parser.add_argument("--key", metavar="NAME", help="the entry of the file that holds the tensors: state_dict")
    parser.add_argument("--skip", metavar="PATTERN", action="append", default=[], help="leave out entries (optimizer*)")
    parser.add_argument("--json", action="store_true", help="JSON lines also on a terminal")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Convert; 0 when OUT is there.

    Raises:
        NotConvertible: Something in it cannot be represented; each is named.
        CheckpointError, ConfigurationError, NoSpace: It is no checkpoint, or OUT cannot be written.
    """
    from adapter.conversion.convert import ConvertOptions, convert
    from adapter.conversion.state import Choice

    begun_s = time.monotonic()
    with Telling("convert", json_lines=arguments.json) as telling:
        telling.started(source=str(arguments.source), to=str(arguments.target))
        choice = Choice(arguments.key, tuple(arguments.skip))
        done = convert(arguments.source, arguments.target, ConvertOptions(arguments.shard_size, choice, telling.now))
        seconds = time.monotonic() - begun_s
        tied = "".join(f"\ntied: {printable(name)} is {printable(kept)}" for name, kept in done.tied.items())
        skipped = f"\nleft out: {', '.join(map(printable, done.skipped))}" if done.skipped else ""
        telling.complete(
            f"{printable(str(arguments.target))}: tensors {done.tensors}, shards {len(done.shards)}, files beside them "
            f"{len(done.files)}, written and verified {amount(done.total_bytes, seconds)}{tied}{skipped}",
            to=str(arguments.target),
            tensors=done.tensors,
            total_bytes=done.total_bytes,
            shards=list(done.shards),
            files=list(done.files),
            tied=dict(done.tied),
            skipped=list(done.skipped),
            seconds=round(seconds, 3),
        )
    return 0


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
