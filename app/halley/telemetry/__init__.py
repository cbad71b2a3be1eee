"""The log: one structured line for each event of interest to operators (`events.py` lists them all).

Imported at the edges only; the broker and the engines expose plain numbers, which are read here. Nothing that a peer
sent is written unescaped or at length (`lines.py`), and no secret at all: query strings (a JSONP query contains its
clientId), cookies, tokens and session ids stay out. Where lines must be distinguished by session, a keyed hash stands
for its id.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import orjson
import structlog

from halley.settings import Log
from halley.telemetry.lines import Shortener, Throttle

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FINGERPRINT_KEY = secrets.token_bytes(16)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_throttle = Throttle()


class RequestHead(Protocol):
    """What the log has of a request: the head as transports read it."""

    address: str
    method: str
    path: str

    @property
    def fields(self) -> Mapping[bytes, bytes]:
        """The header fields by lower-case name."""


class _StandardError:
    """Standard error, without its errors: a closed terminal, or a full disk behind it, must not end the server."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


def write_line(text: str) -> None:
    """Write a line, or several, for the terminal that the program was started in; it may have been closed since."""
    print(text, file=_StandardError(), flush=True)


def configure(options: Log) -> None:
    """Set up how lines are written. Call it once, before anything is logged; programs that embed Halley do not."""
    is_json = options.format == "json" or (options.format == "auto" and not sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(serializer=lambda line, **_: orjson.dumps(line, default=str).decode())
        if is_json
        else structlog.dev.ConsoleRenderer()
    )
    shared: list[structlog.typing.Processor] = [
        _throttle,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        Shortener(options.value_chars),
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[options.level]),
        logger_factory=structlog.WriteLoggerFactory(_StandardError()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_StandardError())  # for what libraries log by the standard module
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared[1:],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    handler.addFilter(_passes)
    logging.basicConfig(handlers=[handler], level=max(_LEVELS[options.level], logging.WARNING), force=True)


def _passes(record: logging.LogRecord) -> bool:
    try:
        _throttle(None, record.levelname.lower(), {"event": record.name})
    except structlog.DropEvent:
        return False
    return True


def report_suppressed() -> None:
    """Log how many lines of each event were left out because there were too many; to be called once a second."""
    for event, count in _throttle.dropped():
        log.warning("suppressed", of=event, count=count)


def fingerprint(secret: str) -> str:
    """Eight hexadecimal digits that stand for a session id in this process's log."""
    return hashlib.blake2b(secret.encode(), key=_FINGERPRINT_KEY, digest_size=4).hexdigest()


def request_refused(status: int, reason: str, *, head: RequestHead | None = None, address: str = "") -> None:
    """Log a request that was refused before an engine saw it. At level debug every one is written.

    `head` is given where it was read; `address` is the peer's, for a request without one.
    """
    known = {"address": address}
    if head is not None:
        agent = head.fields.get(b"user-agent", b"").decode("latin-1")
        known = {"address": head.address, "method": head.method, "path": head.path, "user_agent": agent}
    write = log.debug if log.is_enabled_for(logging.DEBUG) else log.info
    write("request_refused", status=status, reason=reason, **known)


def fault(what: str, error: BaseException) -> None:
    """Log an error in Halley, or in a program that it loaded, with its traceback; `what` names the part that failed.

    A group of errors has a line for each.
    """
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            fault(what, each)
        return
    log.error("fault", what=what, error=repr(error), exc_info=error)
