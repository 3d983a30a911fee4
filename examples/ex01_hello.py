"""The smallest handler: a function of an event, without a model.

    cd examples && coldstart serve ex01_hello:greet
    curl localhost:8080 -d '{"name": "Ada"}'

Run as a program it calls the handler once, as a test of your own would.
"""

from __future__ import annotations

from typing import Any

from adapter import InvocationContext, coldstart_handler


@coldstart_handler
def greet(event: dict[str, Any], context: InvocationContext) -> dict[str, Any]:
    return {"greeting": f"Hello, {event.get('name', 'world')}!", "first": context.is_cold_start}


if __name__ == "__main__":
    print(greet({"name": "Ada"}))
