"""Importing the framework as a stage of its own, so that a start can show what it costs."""

from __future__ import annotations


def import_framework() -> str:
    """Import torch; gives its version. Takes 1 to 3 s and holds the interpreter lock for up to half a second of it."""
    import torch

    return str(torch.__version__)
