"""Handlers that are ready to serve: a text embedding model, and an echo without one."""
