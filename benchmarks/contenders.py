"""Ways to bring a checkpoint from an S3 store into local memory, each a process of its own.

    python benchmarks/contenders.py NAME SPEC

SPEC is JSON, see `Spec`. A contender imports what it needs first and is timed then: its client is made, and everything
is where a framework can take it from (files on tmpfs, or CPU tensors). One JSON line says how long that took.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import ssl
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Run = Callable[[], Callable[[], list[int]] | None]
"""What is timed; may give what tells the checksum of each tensor, where no files are left to look at."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What is brought where."""

    endpoint: str
    bucket: str
    prefix: str
    names: list[str]
    sizes: list[int]
    directory: str
    connections: int
    part_bytes: int
    certificate: str
    options: dict[str, Any]

    @property
    def secure(self) -> bool:
        """Whether the store speaks TLS."""
        return self.endpoint.startswith("https://")

    def parts(self) -> queue.SimpleQueue[tuple[int, int, int]]:
        """Object, first byte and length of each part, in order."""
        found: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        for index, size in enumerate(self.sizes):
            for start in range(0, size, self.part_bytes):
                found.put((index, start, min(self.part_bytes, size - start)))
        return found


def ours(spec: Spec) -> Run:
    """This package: the stream of a cold start, into its cache; tensors are views on the files of it."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import adapter.storage.s3  # noqa: F401 - what a source of S3 imports when it is opened
    from adapter.storage.sources import open_source
    from adapter.streaming.cache import Cache
    from adapter.streaming.integrity import best_algorithm
    from adapter.streaming.options import StreamOptions
    from adapter.streaming.streamer import Streamer

    best_algorithm()
    address = f"s3://{spec.bucket}/{spec.prefix}"
    options = StreamOptions(address=address, connections=spec.connections, part_bytes=spec.part_bytes, **spec.options)

    def run() -> None:
        with (
            open_source(address, connections=spec.connections) as source,
            Streamer(source, Cache(Path(spec.directory) / "cache"), options) as streamer,
        ):
            manifest = streamer.prepare()
            streamer.run()
        for entry in manifest.objects:
            os.link(entry.published, Path(spec.directory) / entry.name)

    return run


def s3transfer(spec: Spec) -> Run:
    """boto3's `download_file`, which is s3transfer, all objects at a time."""
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    most: int = spec.options.get("max_concurrency", max(1, spec.connections // len(spec.names)))

    def run() -> None:
        config = Config(max_pool_connections=most * len(spec.names) + 2, s3={"addressing_style": "path"})
        client = boto3.client("s3", endpoint_url=spec.endpoint, config=config)
        transfer = TransferConfig(
            multipart_threshold=spec.part_bytes,
            multipart_chunksize=spec.part_bytes,
            max_concurrency=most,
            io_chunksize=spec.options.get("io_chunksize", 1 << 20),
        )

        def bring(name: str) -> None:
            client.download_file(spec.bucket, spec.prefix + name, f"{spec.directory}/{name}", Config=transfer)

        with ThreadPoolExecutor(len(spec.names)) as pool:
            list(pool.map(bring, spec.names))

    return run


def obstore(spec: Spec) -> Run:
    """Ranges by obstore (Rust, object_store), written with pwrite by as many threads as connections."""
    from obstore import get_range
    from obstore.store import S3Store

    def run() -> None:
        store = S3Store(
            spec.bucket,
            endpoint=spec.endpoint,
            virtual_hosted_style_request=False,
            # it trusts no certificate that is not of a public authority; checking one is no part of what is measured
            client_options={"allow_http": True, "allow_invalid_certificates": spec.secure, "http1_only": True},
        )
        parts = spec.parts()
        files = [_sized(f"{spec.directory}/{name}", size) for name, size in zip(spec.names, spec.sizes, strict=True)]

        def work() -> None:
            while True:
                try:
                    index, start, length = parts.get_nowait()
                except queue.Empty:
                    return
                data = memoryview(get_range(store, spec.prefix + spec.names[index], start=start, length=length))
                while data:
                    count = os.pwrite(files[index], data, start)
                    start, data = start + count, data[count:]

        _in_threads(work, spec.connections)

    return run


def runai(spec: Spec) -> Run:
    """runai-model-streamer to CPU tensors that stay (C++, the AWS SDK)."""
    os.environ |= {
        "RUNAI_STREAMER_CONCURRENCY": str(spec.connections),
        "RUNAI_STREAMER_OBJ_CONCURRENCY": str(spec.connections),
        "RUNAI_STREAMER_CHUNK_BYTESIZE": str(spec.part_bytes),
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        "RUNAI_STREAMER_LOG_LEVEL": "ERROR",
        "AWS_ENDPOINT_URL": spec.endpoint,
        **{name: str(value) for name, value in spec.options.items()},
    }
    import torch
    from runai_model_streamer import SafetensorsStreamer

    def run() -> Callable[[], list[int]]:
        paths = [f"s3://{spec.bucket}/{spec.prefix}{name}" for name in spec.names]
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(paths)
            kept = list(streamer.get_tensors())

        def checksums() -> list[int]:
            return [zlib.crc32(tensor.contiguous().view(torch.uint8).numpy()) for _, tensor in sorted(kept)]

        return checksums

    return run


def awscrt(spec: Spec) -> Run:
    """The S3 client of the AWS common runtime (C), which writes the files itself."""
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.http import HttpHeaders, HttpRequest
    from awscrt.io import ClientBootstrap, ClientTlsContext, DefaultHostResolver, EventLoopGroup, TlsContextOptions
    from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType, create_default_s3_signing_config

    def run() -> None:
        loops = EventLoopGroup()
        bootstrap = ClientBootstrap(loops, DefaultHostResolver(loops))
        credentials = AwsCredentialsProvider.new_static("test", "test")
        tls = None
        if spec.secure:
            trusted = TlsContextOptions()
            trusted.override_default_trust_store_from_path(None, spec.certificate)
            tls = ClientTlsContext(trusted).new_connection_options()
        client = S3Client(
            bootstrap=bootstrap,
            region="us-east-1",
            signing_config=create_default_s3_signing_config(region="us-east-1", credential_provider=credentials),
            tls_mode=S3RequestTlsMode.ENABLED if spec.secure else S3RequestTlsMode.DISABLED,
            tls_connection_options=tls,
            part_size=spec.part_bytes,
            throughput_target_gbps=spec.options.get("throughput_target_gbps", 100.0),
            max_active_connections_override=spec.connections,
        )
        host = spec.endpoint.partition("://")[2]
        waiting = [
            client.make_request(
                request=HttpRequest("GET", f"/{spec.bucket}/{spec.prefix}{name}", HttpHeaders([("Host", host)])),
                type=S3RequestType.GET_OBJECT,
                recv_filepath=f"{spec.directory}/{name}",
            ).finished_future
            for name in spec.names
        ]
        for each in waiting:
            each.result(300)

    return run


def _sized(path: str, size_bytes: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, size_bytes)
    return descriptor


def _in_threads(work: Callable[[], None], count: int) -> None:
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


CONTENDERS: dict[str, Callable[[Spec], Run]] = {
    "ours": ours,
    "s3transfer": s3transfer,
    "obstore": obstore,
    "runai": runai,
    "awscrt": awscrt,
}


def main() -> int:
    """Run one, print what it took."""
    spec = Spec(**json.loads(sys.argv[2]))
    run = CONTENDERS[sys.argv[1]](spec)
    ssl.create_default_context()  # what Python's TLS costs once a process is no part of the stream
    used, begun_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    checksums = run()
    seconds, now_used = time.monotonic() - begun_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = now_used.ru_utime + now_used.ru_stime - used.ru_utime - used.ru_stime
    facts: dict[str, object] = {"seconds": seconds, "cpu_s": cpu_s, "user_s": now_used.ru_utime - used.ru_utime}
    facts["switches"] = now_used.ru_nvcsw + now_used.ru_nivcsw - used.ru_nvcsw - used.ru_nivcsw
    if checksums is not None:
        facts["checksums"] = checksums()
    print(json.dumps(facts), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
