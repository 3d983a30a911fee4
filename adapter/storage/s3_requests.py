"""Range requests to S3 in which the SDK is asked once a minute for each object, not once for each range.

A request through a client of boto3 takes 1.3 ms of CPU time, all of it under the GIL: at a part of 8 MiB that is a
sixth of a CPU second for each GB, and it bounds how many parts a second may begin. Of that, 0.2 ms are the sending. So
the SDK builds and signs one request for the whole object, with everything that endpoint, address and credentials ask
for, and each range sends that very request with the two headers that a signature need not cover (Range, If-Match).

Sources: AWS Signature Version 4 ("Create a signed request": Host and x-amz-* have to be signed, others may be; a
signature counts for 15 minutes).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError, ConnectionClosedError
from botocore.parsers import create_parser
from botocore.response import StreamingBody
from urllib3.exceptions import HTTPError

_FRESH_S = 60.0
"""How long a signature is used: a fraction of its 15 minutes, so that clocks may differ."""
_RANGE_ARGUMENTS: Mapping[str, str] = {"Range": "Range", "IfMatch": "If-Match"}
"""Arguments of `get_object` that differ from range to range, and the headers they become."""
_SEEN = "before-send.s3.GetObject"


@dataclass(frozen=True, slots=True)
class _Signed:
    """A request for a whole object, ready to be sent."""

    client: Any
    url: str
    headers: Mapping[str, str | bytes]
    signed_s: float


class _Nothing:
    """The body of an answer that nobody sent."""

    def stream(self) -> list[bytes]:
        return []

    def read(self, _: int | None = None) -> bytes:
        return b""

    def close(self) -> None:
        pass


class S3Requests:
    """Sends `get_object` for the clients of one source. Thread-safe."""

    def __init__(self) -> None:
        self._signed: dict[str, _Signed] = {}
        self._asking = threading.local()
        self._lock = threading.Lock()
        self._watched: Any = None

    def get_object(self, client: Any, **arguments: Any) -> dict[str, Any]:
        """As the client's `get_object`: the same keys of the answer that readers of ranges look at.

        Args:
            client: Of boto3.
            arguments: As of its `get_object`.

        Raises:
            ClientError: The store refuses.
            BotoCoreError, ResponseParserError: As the client raises.
        """
        session = _http_session(client)
        request = self._request(client, arguments) if session is not None else None
        if session is None or request is None:
            answer: dict[str, Any] = client.get_object(**arguments)
            return answer
        return _answer(session.send(request))

    def _request(self, client: Any, arguments: dict[str, Any]) -> AWSPreparedRequest | None:
        """The request for this range; None where the SDK does not show what it would send."""
        key: str = arguments["Key"]
        signed = self._signed.get(key)
        if signed is None or signed.client is not client or time.monotonic() - signed.signed_s > _FRESH_S:
            whole = {name: value for name, value in arguments.items() if name not in _RANGE_ARGUMENTS}
            signed = self._sign(client, whole)
            if signed is None:
                return None
            self._signed[key] = signed
        headers = dict(signed.headers)
        headers |= {header: arguments[name] for name, header in _RANGE_ARGUMENTS.items() if name in arguments}
        return AWSPreparedRequest("GET", signed.url, headers, None, True)

    def _sign(self, client: Any, whole: dict[str, Any]) -> _Signed | None:
        """Let the SDK make a request, and take it from its hands before it is sent."""
        with self._lock:
            if self._watched is not client:
                client.meta.events.register_first(_SEEN, self._see, unique_id=f"coldstart-{id(self)}")
                self._watched = client
        signed_s = time.monotonic()
        self._asking.seen = None
        self._asking.active = True
        try:
            client.get_object(**whole)["Body"].close()
        finally:
            self._asking.active = False
        seen = self._asking.seen
        return None if seen is None else _Signed(client, seen.url, dict(seen.headers), signed_s)

    def _see(self, request: AWSPreparedRequest, **_: object) -> AWSResponse | None:
        """Called by the SDK before it sends; an answer given here stands for the store's."""
        if not getattr(self._asking, "active", False):
            return None
        self._asking.seen = request
        return AWSResponse(request.url, 200, {}, _Nothing())


def _http_session(client: Any) -> Any | None:
    """What the client sends with: its pool, proxies and trust. Not a public name; a test says when it moves."""
    found = getattr(getattr(client, "_endpoint", None), "http_session", None)
    return found if callable(getattr(found, "send", None)) else None


def _answer(response: AWSResponse) -> dict[str, Any]:
    headers = {str(name): str(value) for name, value in response.headers.items()}
    if response.status_code < 300:
        return {
            "Body": StreamingBody(response.raw, headers.get("content-length")),
            "ResponseMetadata": {"HTTPStatusCode": response.status_code, "HTTPHeaders": headers},
        }
    try:
        said = {"status_code": response.status_code, "headers": response.headers, "body": response.content}
    except HTTPError as error:
        raise ConnectionClosedError(endpoint_url="", error=error) from error
    raise ClientError(create_parser("rest-xml").parse(said, None), "GetObject")
