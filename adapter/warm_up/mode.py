"""The mode in which user code runs: entered once, for life, by the thread that runs it (D11)."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext


def user_mode(inference_mode: bool) -> AbstractContextManager[object]:
    """What the worker's main thread enters before the first warm-up call and never leaves.

    Never around a coroutine or generator: a `with` that is suspended leaks the mode into whatever runs next.

    Args:
        inference_mode: Whether the handler wants `torch.inference_mode`; without torch loaded it means nothing.
    """
    if not inference_mode or "torch" not in sys.modules:
        return nullcontext()
    import torch

    return torch.inference_mode()
