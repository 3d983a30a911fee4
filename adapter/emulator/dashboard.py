"""What a person sees of an emulator at `/`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from adapter.emulator.emulator import Emulator


def routes(emulator: Emulator) -> list[BaseRoute]:
    """The routes of the dashboard."""

    async def index(request: Request) -> Response:
        lines = [f"{emulator.options.target} on a serverless platform of its own", ""]
        lines += [f"{replica['id']}: {replica['state']} ({replica['phase']})" for replica in emulator.replicas()]
        return PlainTextResponse("\n".join([*lines, "", "POST /invoke asks it; see also /replicas /reports /events"]))

    return [Route("/", index)]
