"""Why no answer came: errors of sockets, TLS and name service, told apart by what lies below a client's own error."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping

from adapter.errors import ConnectionFailed, Field, NameNotResolved, StorageError, TlsFailed

_MOST = 16
"""Errors in a chain that are looked at: chains can be circles."""
_NEVER_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"})
"""The other side does not speak TLS, or no version of it that we do; other TLS errors are those of a broken line."""


def unanswered(error: BaseException, address: str, where: str, facts: Mapping[str, Field]) -> StorageError:
    """The error that says why the store could not be asked; no word of the client's own, which could hold a secret.

    Args:
        error: The client's error.
        address: What was to be read, as it may be shown.
        where: Host and port that were asked, and the proxy where there is one.
        facts: Fields of the error.
    """
    fields: dict[str, Field] = {"cause": type(error).__name__, **facts}
    for each in _below(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            why = each.verify_message or "not trusted"
            fields["cause"] = "CERTIFICATE_VERIFY_FAILED"
            return TlsFailed(f"{address}: the certificate of {where} is not trusted ({why})", **fields)
        if isinstance(each, ssl.SSLError) and each.reason in _NEVER_TLS:
            fields["cause"] = each.reason
            return TlsFailed(f"{address}: {where} does not speak TLS as it is asked here ({each.reason})", **fields)
        if isinstance(each, socket.gaierror):
            fields["cause"] = "gaierror"
            return NameNotResolved(f"{address}: the name of {where} is not known here ({each.strerror})", **fields)
    return ConnectionFailed(f"{address}: no answer from {where} ({fields['cause']})", **fields)


def _below(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those it was raised from; clients keep them in different places."""
    waiting, seen = [error], 0
    while waiting and seen < _MOST:
        each = waiting.pop(0)
        if each is None:
            continue
        seen += 1
        yield each
        waiting += [each.__cause__, each.__context__]
        kept = getattr(each, "kwargs", None)  # botocore's errors
        inner = [kept.get("error")] if isinstance(kept, dict) else []
        inner += [getattr(each, "reason", None), *each.args]
        waiting += [found for found in inner if isinstance(found, BaseException)]
