"""The worker: runs user code on its main thread, from the import of the framework to the last invocation.

It holds no listener, no storage client and no lock; its only peer is the front, by the link. Sync handlers run one
at a time; async handlers share one event loop. Both run on the main thread, in the mode entered once after loading.
"""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from adapter.coldstart import Prepared, StartOrder, describe_failure, prepare, warm_up
from adapter.invocation import InvocationContext
from adapter.lifecycle import Phase
from adapter.logs import Log
from adapter.runtime.calls import Call, Interrupts, failed, leave_if_forked
from adapter.runtime.codec import decode_event, encode_result
from adapter.runtime.link import Frame
from adapter.runtime.roles import ReplicaSpec, Role, write_json
from adapter.runtime.user_output import carry_user_output
from adapter.runtime.worker_link import WorkerLink
from adapter.timeline import Timeline
from adapter.warm_up.mode import user_mode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task


def main(spec: ReplicaSpec) -> int:
    """The role's life; the exit code: that of the error left in the role's error file."""
    log = Log("worker", spec.settings.log_level)
    carry_user_output(log, spec.settings.log_level)
    timeline = Timeline("worker", spec.timeline)
    order = StartOrder(spec.target, spec.settings, spec.manifest, tuple(sys.path), timeline)
    intake = Intake()
    link = WorkerLink(spec.link, intake.take, intake.front_lost)
    link.announce(Frame("hello", {"pid": os.getpid(), "instance": spec.run_dir.name}))
    link.start()
    try:
        prepared = prepare(order, lambda phase, head: _tell(link, phase, head))
        with user_mode(prepared.handler.spec.inference_mode):
            # from here on user code runs as it will for invocations: same thread, same mode, same loop
            server = _server(prepared, intake, link, log)
            warm_up(order, prepared, server.warm)
            link.announce(_ready(prepared))
            server.serve()
    except Exception as caught:
        error = describe_failure(caught)
        write_json(spec.error_of(Role.WORKER), error.to_dict())
        log.error("worker.failed", code=error.code, message=error.message, trace=error.fields.get("trace"))
        return error.exit_code
    return 0


def _tell(link: WorkerLink, phase: Phase, head: Mapping[str, Any]) -> None:
    link.announce(Frame("phase", {"phase": str(phase), **head}))


def _ready(prepared: Prepared) -> Frame:
    spec = prepared.handler.spec
    head = {
        "name": spec.name,
        "concurrency": spec.concurrency,
        "timeout_s": spec.timeout_s,
        "streams": prepared.handler.kind.streams,
    }
    return Frame("ready", head)


class Intake:
    """Where the link's thread puts what the front says, until a server takes it.

    A server sets `on_call` and `on_cancel` before the worker is ready; the front sends no invocation earlier.
    """

    def __init__(self) -> None:
        self.on_call: Callable[[Call], None] = _nobody
        self.on_cancel: Callable[[Call, str], None] = _nobody
        self._calls: dict[str, Call] = {}

    def take(self, frame: Frame) -> None:
        """A frame of the front; called in the link's thread."""
        request_id = str(frame.head.get("id"))
        if frame.kind == "invoke":
            call = Call(request_id, frame.body, frame.head.get("deadline"), bool(frame.head.get("cold")))
            self._calls[request_id] = call
            self.on_call(call)
        elif frame.kind == "cancel" and (call := self._calls.get(request_id)) is not None:  # type: ignore[assignment]
            self.on_cancel(call, str(frame.head.get("reason", "client_gone")))

    def front_lost(self) -> None:
        """The front is gone, and with it everyone who waited; called in the link's thread."""
        for call in list(self._calls.values()):
            self.on_cancel(call, "client_gone")

    def ended(self, call: Call) -> None:
        """The call has its last frame."""
        call.ended = True
        self._calls.pop(call.request_id, None)


def _nobody(*_: object) -> None:
    """No server yet."""


class SyncServer:
    """Runs a sync handler's invocations one after the other on the calling thread."""

    def __init__(self, prepared: Prepared, intake: Intake, link: WorkerLink, log: Log) -> None:
        self._prepared = prepared
        self._intake = intake
        self._link = link
        self._log = log
        self._pid = os.getpid()
        self._interrupts = Interrupts()
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        intake.on_call = self._calls.put
        intake.on_cancel = self._interrupts.cancel

    def warm(self, event: Any) -> None:
        """One recorded call, to the end of its stream, its result encoded."""
        result = self._prepared.handler.call(self._prepared.model, event, InvocationContext(request_id="warm-up"))
        for item in result if self._prepared.handler.kind.streams else (result,):
            encode_result(item)

    def serve(self) -> None:
        """Serve until the process ends."""
        while True:
            call = self._calls.get()
            try:
                last = self._run(call)
            except BaseException as error:
                leave_if_forked(self._pid, error)
                # whatever user code raises ends its invocation, not the worker: sys.exit, KeyboardInterrupt as well
                last = failed(call, error, self._log)
            leave_if_forked(self._pid)
            self._intake.ended(call)
            self._link.send(last)

    def _run(self, call: Call) -> Frame:
        handler, model = self._prepared.handler, self._prepared.model
        event = decode_event(call.event)
        context = call.context(self._link.send)
        if handler.kind.streams:
            for item in self._items(call, lambda: handler.call(model, event, context)):
                self._link.send(Frame("item", {"id": call.request_id}, item))
            return call.frame("end")
        with self._interrupts.running(call):
            body = encode_result(handler.call(model, event, context))
        return call.frame("result", body)

    def _items(self, call: Call, begin: Callable[[], Any]) -> Iterator[bytes]:
        """Encoded elements; user code runs only inside `running`, frames are sent only outside of it."""
        generator = None
        try:
            while True:
                with self._interrupts.running(call):
                    generator = begin() if generator is None else generator
                    try:
                        body = encode_result(next(generator))
                    except StopIteration:
                        return
                yield body
        finally:
            if generator is not None:
                generator.close()


class AsyncServer:
    """Runs an async handler's invocations on one event loop of the calling thread."""

    def __init__(self, prepared: Prepared, intake: Intake, link: WorkerLink, log: Log) -> None:
        import asyncio

        self._asyncio = asyncio
        self._pid = os.getpid()
        self._prepared = prepared
        self._intake = intake
        self._link = link
        self._log = log
        self._loop: AbstractEventLoop = asyncio.new_event_loop()
        self._tasks: dict[str, Task[None]] = {}
        intake.on_call = lambda call: self._on_loop(self._begin, call)
        intake.on_cancel = lambda call, reason: self._on_loop(self._cancel, call, reason)

    def warm(self, event: Any) -> None:
        """One recorded call, to the end of its stream, its result encoded."""
        self._loop.run_until_complete(self._warm(event))

    def serve(self) -> None:
        """Serve until the process ends."""
        self._loop.run_forever()

    async def _warm(self, event: Any) -> None:
        result = self._prepared.handler.call(self._prepared.model, event, InvocationContext(request_id="warm-up"))
        if self._prepared.handler.kind.streams:
            async for item in result:
                encode_result(item)
        else:
            encode_result(await result)

    def _on_loop(self, act: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(act, *arguments)

    def _begin(self, call: Call) -> None:
        task = self._loop.create_task(self._serve(call))
        self._tasks[call.request_id] = task
        task.add_done_callback(lambda _: self._done(call))

    def _done(self, call: Call) -> None:
        del self._tasks[call.request_id]
        if not call.ended:  # cancelled before its first step: nothing of it has run
            self._end(call, failed(call, self._asyncio.CancelledError(), self._log))

    def _end(self, call: Call, last: Frame) -> None:
        self._intake.ended(call)
        self._link.send(last)

    def _cancel(self, call: Call, reason: str) -> None:
        task = self._tasks.get(call.request_id)
        if task is not None:
            call.cancel_reason = reason
            task.cancel()

    async def _serve(self, call: Call) -> None:
        try:
            last = await self._run(call)
        except BaseException as error:
            leave_if_forked(self._pid, error)
            last = failed(call, error, self._log)
        leave_if_forked(self._pid)
        self._end(call, last)

    async def _run(self, call: Call) -> Frame:
        handler, model = self._prepared.handler, self._prepared.model
        result = handler.call(model, decode_event(call.event), call.context(self._link.send))
        if not handler.kind.streams:
            return call.frame("result", encode_result(await result))
        try:
            async for item in result:
                self._link.send(Frame("item", {"id": call.request_id}, encode_result(item)))
        finally:
            await result.aclose()
        return call.frame("end")


def _server(prepared: Prepared, intake: Intake, link: WorkerLink, log: Log) -> SyncServer | AsyncServer:
    kind = AsyncServer if prepared.handler.kind.is_async else SyncServer
    return kind(prepared, intake, link, log)
