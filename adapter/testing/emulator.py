"""An emulated platform for tests: `coldstart emulate` as a child process, and what tests do with it."""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlsplit

from adapter.errors import AdapterError, ConfigurationError
from adapter.init_report import InitReport
from adapter.testing.child import Child
from adapter.testing.result import Result, read_result
from adapter.testing.stream import StreamReader, is_stream

if TYPE_CHECKING:
    import http.client

T = TypeVar("T")

LISTEN_LIMIT_S = 60.0
"""From the child's start to its open port: under a second, on a machine that has time for it."""
ANSWER_LIMIT_S = 900.0
"""Longer than any start or invocation that the platform lets live: it answers first, with a reason."""
LOOK_LIMIT_S = 30.0
"""How long the platform may take to say how it is."""
STATE_LIMIT_S = 60.0
"""How long replicas may take to end beyond their grace."""
POLL_S = 0.01
IDLE_S = 3600.0
GRACE_S = 5.0


class Options(TypedDict, total=False):
    """How the platform is; what is left out is as `coldstart emulate` has it, but for two that tests want otherwise."""

    weights: str | os.PathLike[str] | None
    """A directory, served as an object store, or an address; the handler's own without it."""
    link: str
    """Speed of the store's link, such as `1Gbps`."""
    first_byte_ms: float
    """Wait of the store before each answer."""
    max_replicas: int
    idle_s: float
    """Scale to zero after this; here an hour: a test says when."""
    init_limit_s: float
    request_limit_s: float
    grace_s: float
    """From SIGTERM to SIGKILL; here 5 s: few tests want to wait for more."""
    cache_dir: str | os.PathLike[str]
    """Where the host keeps weights; a temporary directory without it."""
    env: Mapping[str, str]
    """Variables for replicas. `COLDSTART_…` of the tests' own environment does not reach them."""
    directory: str | os.PathLike[str]
    """Where it runs, and handlers are found besides the tests' own `sys.path`; the current one without it."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as the platform sees it."""

    id: str
    pid: int
    state: str
    """starting, ready, busy, idle, stopping or gone."""
    phase: str
    """Of its start, as `/health/ready` tells it."""
    served: int
    """Invocations that were handed to it."""
    exit_code: int | None

    @property
    def ready(self) -> bool:
        """Whether it takes invocations, or runs as many as it may."""
        return self.state in ("ready", "busy", "idle")

    @property
    def alive(self) -> bool:
        """Whether it is there, be it starting or ending."""
        return self.state != "gone"


class StartEmulator(Protocol):
    """What the fixture `emulator` is: starts a platform for a handler, and ends it with the test."""

    def __call__(self, target: str, **options: Unpack[Options]) -> Emulator:
        """The running platform for the handler `module:name`.

        Raises:
            AdapterError: It did not start; the message says why.
        """
        ...


_RUNNING: weakref.WeakSet[Emulator] = weakref.WeakSet()


class Emulator:
    """A running platform for one handler, without replicas at first; use it in a `with` block. Thread-safe.

    Args:
        target: The handler, `module:name`.
        options: How the platform is: `Options`.

    Raises:
        AdapterError: It did not start; the message says why.
    """

    def __init__(self, target: str, **options: Unpack[Options]) -> None:
        self.target: str = target
        self._grace_s = options.get("grace_s", GRACE_S)
        self._seen: dict[int, tuple[str, InitReport]] = {}
        self._child: Child | None = None
        try:
            directory = Path(options.get("directory", "")).absolute()
            if not directory.is_dir():
                raise ConfigurationError(f"the directory {directory} is not there", path=str(directory))
            self._child = Child(["emulate", target, *_flags(options)], directory)
            self._url = self._child.wait_for(self._announced, "its port was open", LISTEN_LIMIT_S)
            _RUNNING.add(self)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end: for clients of your own, and for a browser."""
        return self._url

    @property
    def log(self) -> str:
        """What it and its replicas have said so far, one after the other."""
        assert self._child is not None
        said = [self._child.log]
        if self._child.exit_code() is None:
            said += [self._text(f"/replicas/{replica.id}/log") for replica in self.replicas()]
        return "".join(said)

    @property
    def store(self) -> Mapping[str, Any]:
        """What the embedded store has served so far: `requests`, `bytes_sent`, `by_key`.

        Raises:
            AdapterError: The weights are no directory, so there is no such store.
        """
        served: dict[str, Any] = self._json("GET", "/store")
        return served

    def invoke(self, event: Any, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Result:
        """Ask the handler, and wait for the whole answer, be it a result, a stream or an error.

        Args:
            event: Any JSON value; bytes are sent as they are.
            headers: Further request headers.
            timeout_s: The caller's patience, waiting for a replica included.

        Raises:
            AdapterError: The platform itself is not there any more.
        """
        with self._asked(event, headers, timeout_s) as response:
            return read_result(response.status, _headers(response), response.read())

    def stream(self, event: Any, *, headers: Mapping[str, str] | None = None) -> Generator[Any]:
        """The items of a generator handler as they come; closing the iterator hangs up, as a caller who goes away.

        Of another handler, its one value.

        Raises:
            AdapterError: The stream ended with an error, after the items before it, or there was none.
        """
        with self._asked(event, headers) as response:
            found = _headers(response)
            if not is_stream(found):
                yield read_result(response.status, found, response.read()).value
                return
            reader = StreamReader(found)
            # not line by line: `readline` takes a stream that broke off for one that has ended
            while data := response.read1():
                for record in reader.feed(data):
                    if record.kind == "error":
                        raise AdapterError.from_dict(record.value)
                    if record.kind in ("item", "result"):
                        yield record.value
            reader.close()

    def cold_start(self, event: Any = None) -> InitReport:
        """Scale to zero, have a replica started, and give the report of that start.

        Args:
            event: What the platform is asked so that it starts one; whether the handler takes it does not matter.

        Raises:
            AdapterError: The start failed: its own error.
        """
        self.scale_to_zero()
        result = self.invoke(event)
        if result.start is None and result.error is not None:  # it never met a replica that was ready
            raise result.error

        def found() -> InitReport | None:
            return next((report for replica, report in self._reports() if replica == result.replica), None)

        return self._until(found, f"the report of replica {result.replica}")

    def scale_to_zero(self) -> None:
        """End every replica, as idle ones end; returns when they are gone. What they run may finish within the grace.

        Callers who wait are not sent away: the platform starts a new replica for them, which this does not wait for.

        Raises:
            AdapterError: They did not end in time.
        """
        there = {replica.id for replica in self.replicas() if replica.alive}
        self._json("POST", "/scale-to-zero")
        # what was started between the two was ended too
        there |= {replica.id for replica in self.replicas() if replica.alive and replica.state == "stopping"}

        def gone() -> bool | None:
            return not any(replica.alive and replica.id in there for replica in self.replicas()) or None

        self._until(gone, "the end of the replicas")

    def kill(self, role: str = "worker", replica: str | None = None) -> str:
        """Kill a role of a replica with SIGKILL; returns when it is gone, with the id of the replica.

        Args:
            role: worker, which the replica replaces; supervisor, with which the replica goes; front or fetcher.
            replica: Its id; without one, the newest that is ready.

        Raises:
            AdapterError: There is no such replica, or it has no such role now.
        """
        replicas = self.replicas()
        chosen = replica or next((found.id for found in reversed(replicas) if found.ready), None)
        if chosen is None:
            raise AdapterError(f"no replica is ready; there are {[(found.id, found.state) for found in replicas]}")
        killed = self._json("POST", f"/replicas/{quote(chosen, safe='')}/kill?role={quote(role)}")
        # gone for the kernel, not a zombie: before that, threads may still hold its connections open
        self._until(lambda: not os.path.exists(f"/proc/{killed['pid']}") or None, f"the end of the {role}")
        return chosen

    @property
    def reports(self) -> list[InitReport]:
        """The reports of all starts so far, recoveries of workers and failed starts too, in order.

        The report of a replica that is ready is always among them.
        """

        def complete() -> list[InitReport] | None:
            ready = {replica.id for replica in self.replicas() if replica.ready}
            known = self._reports()
            return [report for _, report in known] if ready <= {replica for replica, _ in known} else None

        return self._until(complete, "the report of each replica that is ready")

    def replicas(self) -> list[ReplicaState]:
        """The replicas, in the order of their starts; the last of those that are gone too."""
        known = ReplicaState.__dataclass_fields__
        found = sorted(self._json("GET", "/replicas"), key=lambda replica: float(replica["started"]))
        return [ReplicaState(**{name: replica[name] for name in known}) for replica in found]

    def close(self) -> None:
        """End it and everything that it started; nothing where that is done."""
        _RUNNING.discard(self)
        if self._child is not None:
            self._child.end(self._grace_s + STATE_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- its HTTP API --------------------------------------------------------------------------------------------------

    def _announced(self) -> str | None:
        assert self._child is not None
        for line in self._child.lines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return str(json.loads(line)["emulator"]).rstrip("/")
        return None

    def _reports(self) -> list[tuple[str, InitReport]]:
        """Each report that is kept, after the id of its replica."""
        numbered = sorted((summary["number"], str(summary["replica"])) for summary in self._json("GET", "/reports"))
        for number, replica in numbered:
            if number not in self._seen:
                text = json.dumps(self._json("GET", f"/reports/{number}"))
                self._seen[number] = (replica, InitReport.from_json(text))
        return [self._seen[number] for number, _ in numbered]

    @contextlib.contextmanager
    def _asked(
        self, event: Any, headers: Mapping[str, str] | None, timeout_s: float | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        more = {} if timeout_s is None else {"X-Coldstart-Timeout-S": f"{timeout_s:g}"}
        sent = {"Content-Type": "application/json", **more, **(headers or {})}
        with self._request("POST", "/invoke", body, sent, limit_s=ANSWER_LIMIT_S) as response:
            yield response

    def _json(self, method: str, path: str) -> Any:
        with self._request(method, path, None, {}, limit_s=LOOK_LIMIT_S) as response:
            return read_result(response.status, _headers(response), response.read()).value

    def _text(self, path: str) -> str:
        with self._request("GET", path, None, {}, limit_s=LOOK_LIMIT_S) as response:
            return response.read().decode(errors="replace")

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], *, limit_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        import http.client  # with ssl: half of what the plugin would add to every start of pytest

        at = urlsplit(self._url)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=limit_s)
        try:
            connection.request(method, path, body, dict(headers))
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _lost(self, error: Exception) -> AdapterError:
        assert self._child is not None
        if self._child.exit_code() is not None:
            return self._child.ended("while it was asked")
        return AdapterError(f"the emulator at {self._url} does not answer: {type(error).__name__}: {error}")

    def _until(self, look: Callable[[], T | None], what: str) -> T:
        """What `look` gives as soon as that is not None."""
        deadline_s = time.monotonic() + self._grace_s + STATE_LIMIT_S
        while (found := look()) is None:
            if time.monotonic() > deadline_s:
                raise AdapterError(f"{what} did not come within {self._grace_s + STATE_LIMIT_S:g} s")
            time.sleep(POLL_S)
        return found


def running() -> list[Emulator]:
    """The platforms of this process that were started and not closed."""
    return list(_RUNNING)


def _flags(options: Options) -> list[str]:
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        known = ", ".join(Options.__annotations__)
        raise ConfigurationError(f"no such option: {', '.join(unknown)}; there are {known}", options=", ".join(unknown))
    given: dict[str, Any] = {"idle_s": IDLE_S, "grace_s": GRACE_S, "port": 0, **options}
    given = {name: value for name, value in given.items() if value is not None and name != "directory"}
    flags = [word for name, value in given.pop("env", {}).items() for word in ("--env", f"{name}={value}")]
    for name in ("weights", "cache_dir"):
        if name in given and "://" not in os.fspath(given[name]):
            given[name] = Path(given[name]).expanduser().absolute()  # the child may run elsewhere
    for name, value in given.items():
        flags.append(f"--{name.replace('_', '-')}={value}")
    return flags


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}
