"""What operators see: one structured line for each event they would ask about, and counts for Prometheus.

Imported at the edges only; the broker and the engines expose plain numbers, which are read here. Nothing a peer sent
is written unescaped or at length, and no secret at all: query strings (a JSONP query carries its clientId), cookies,
tokens and session ids stay out. Where lines must be told apart by session, a keyed hash of its id stands for it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import sys
from typing import TYPE_CHECKING, Any

import orjson
import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from app.settings import Log
    from app.transports.head import Head

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FINGERPRINT_KEY = secrets.token_bytes(16)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def configure(options: Log) -> None:
    """Say how lines are written. Called once, before anything is logged, and not by programs that embed Halley."""
    is_json = options.format == "json" or (options.format == "auto" and not sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(serializer=lambda line, **_: orjson.dumps(line, default=str).decode())
        if is_json
        else structlog.dev.ConsoleRenderer()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _Shortener(options.value_chars),
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[options.level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)  # for what libraries log by the standard module
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(_LEVELS[options.level], logging.WARNING), force=True)


class _Shortener:
    """Cuts long values and escapes control characters, so that no peer can write lines of its own."""

    def __init__(self, most_chars: int) -> None:
        self._most_chars = most_chars

    def __call__(self, _logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in line.items():
            if isinstance(value, str) and name != "exception":
                line[name] = self._tame(value)
        return line

    def _tame(self, value: str) -> str:
        tame = value[: self._most_chars]
        if not tame.isprintable():
            tame = tame.encode("unicode_escape").decode()
        is_whole = max(len(value), len(tame)) <= self._most_chars
        return tame if is_whole else f"{tame[: self._most_chars]}..."


def fingerprint(secret: str) -> str:
    """Eight characters that stand for a session id in this process' log."""
    return hashlib.blake2b(secret.encode(), key=_FINGERPRINT_KEY, digest_size=4).hexdigest()


def request_rejected(head: Head, status: int, reason: str) -> None:
    """A request that no engine saw."""
    log.debug(
        "request_rejected",
        status=status,
        reason=reason,
        method=head.method,
        path=head.path,
        address=head.address,
        user_agent=head.fields.get(b"user-agent", b"").decode("latin-1"),
    )


def fault(what: str, error: BaseException) -> None:
    """Something of ours, or of the program we serve, that should not have happened."""
    log.error("fault", what=what, error=repr(error), exc_info=error)
