"""nginx as an object store for benchmarks: the fastest server there is for the reading half of S3's protocol.

It serves `DIRECTORY/BUCKET/KEY` under `/BUCKET/KEY` with sendfile, over HTTP and over TLS (a certificate made for the
run). Signatures are not looked at. A listing is a file made in advance, since nginx cannot make one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CONFIG = """
{user}
daemon off;
pid {work}/nginx.pid;
error_log {work}/error.log warn;
worker_processes {workers};
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_requests 1000000;
    open_file_cache max=100;
    ssl_certificate {work}/certificate.pem;
    ssl_certificate_key {work}/key.pem;
    ssl_session_cache shared:tls:1m;
    server {{
        listen 127.0.0.1:{plain};
        listen 127.0.0.1:{tls} ssl;
        root {root};
        location = /-/status {{ stub_status; }}
        location = /{bucket} {{ default_type application/xml; try_files /{bucket}.xml =404; }}
        location = /{bucket}/ {{ default_type application/xml; try_files /{bucket}.xml =404; }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Nginx:
    """A running server."""

    plain_port: int
    tls_port: int
    certificate: Path
    """What clients have to trust."""
    process: subprocess.Popen[bytes]

    @property
    def requests(self) -> int:
        """Requests answered so far, without those of this property."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.plain_port}/-/status", timeout=10) as answer:
            counts = re.search(rb"requests\s+\d+ \d+ (\d+)", answer.read())
        assert counts is not None
        _asked[self.process.pid] = _asked.get(self.process.pid, 0) + 1
        return int(counts[1]) - _asked[self.process.pid]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all its workers so far."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ticks = 0
        for pid in children:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


_asked: dict[int, int] = {}


def find_nginx() -> str:
    """Path of nginx; installed with apt where it is missing and this is root."""
    if shutil.which("nginx", path=_PATH) is None:
        if os.geteuid() or shutil.which("apt-get") is None:
            sys.exit("nginx is needed (Debian, Ubuntu: apt-get install nginx-light)")
        # the run level of repairs: its service, which wants port 80, is not started
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
        install = ["apt-get", "install", "-y", "-qq", "nginx-light"]
        subprocess.run(install, check=True, env=environment, stdout=subprocess.DEVNULL)
    found = shutil.which("nginx", path=_PATH)
    assert found is not None
    return found


_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@contextlib.contextmanager
def running_nginx(root: Path, work: Path, bucket: str, workers: int) -> Iterator[Nginx]:
    """The server, for as long as the block runs.

    Args:
        root: Directory of the bucket's directory.
        work: Directory for its own files.
        bucket: Its one bucket; all objects that are there now are in the listing.
        workers: Processes.
    """
    binary = find_nginx()
    certificate = _make_certificate(work)
    (root / f"{bucket}.xml").write_text(_listing(root / bucket, bucket))
    plain, tls = _free_port(), _free_port()
    config = work / "nginx.conf"
    user = "" if os.geteuid() else "user root;"  # as root its workers would be nobody, who cannot read the files
    facts = {"work": work, "root": root, "bucket": bucket, "plain": plain, "tls": tls, "workers": workers}
    config.write_text(_CONFIG.format(user=user, **facts))
    process = subprocess.Popen([binary, "-p", str(work), "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        _wait_until_listening(process, plain, work)
        yield Nginx(plain, tls, certificate, process)
    finally:
        process.terminate()
        process.wait()


def _make_certificate(work: Path) -> Path:
    certificate, key = work / "certificate.pem", work / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            *kind,
            *names,
            "-nodes",
            "-days",
            "2",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return certificate


def _listing(directory: Path, bucket: str) -> str:
    """The answer to ListObjectsV2, with the ETags that nginx makes of time and size."""
    entries = []
    for path in sorted(each for each in directory.rglob("*") if each.is_file()):
        found = path.stat()
        etag = f"{int(found.st_mtime):x}-{found.st_size:x}"
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.st_mtime))
        entries.append(
            f"<Contents><Key>{path.relative_to(directory)}</Key><LastModified>{moment}</LastModified>"
            f"<ETag>&quot;{etag}&quot;</ETag><Size>{found.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix></Prefix><KeyCount>{len(entries)}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, work: Path) -> None:
    for _ in range(500):
        if process.poll() is not None:
            log = work / "error.log"
            sys.exit(f"nginx ended: {log.read_text() if log.exists() else 'no log'}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    sys.exit("nginx does not listen")
