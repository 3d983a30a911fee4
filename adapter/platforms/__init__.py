"""Wire contracts between serverless platforms and a replica, one file each.

A contract is a `Platform` (`adapter.runtime.front`): one `serve` over the replica's `Services`. The functions here
make them; each imports its own only when it is called, in the front's process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapter.runtime.front import Platform


def plain_http() -> Platform:
    """Plain HTTP push: what containers on most platforms are asked to speak."""
    from adapter.platforms.http import HttpPlatform

    return HttpPlatform()
