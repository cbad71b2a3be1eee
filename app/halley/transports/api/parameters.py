"""The parameters in the query of a request to an HTTP API.

A wrong one is answered with one fixed sentence; nothing that was sent is repeated. Starlette's `query_params` take the
last of two with one name, and replace what is not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from starlette.requests import Request

from halley.transports.guard import Rejection

NONE_KNOWN = "unknown parameter; this path takes none"
TWICE = "duplicate parameter"
UNREADABLE = "the query is not UTF-8"

LAST_OFFSET = 2**63 - 1
_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
_MOST_PARAMETERS = 32


def pairs_of(query_string: bytes) -> list[tuple[str, str]]:
    """The parameters of a query, each with its value. Raises `Rejection`."""
    try:
        return parse_qsl(
            query_string.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except UnicodeError:
        raise Rejection(400, UNREADABLE) from None
    except ValueError:
        raise Rejection(400, TWICE) from None  # there are fewer known parameters than were sent


def parameters(query_string: bytes, known: Mapping[str, str], unknown: str) -> dict[str, str]:
    """The parameters of a query by name. Raises `Rejection` with the text `unknown` for one that is not in `known`.

    Raises `Rejection` also for a duplicate and for a query that is not UTF-8.
    """
    return single(pairs_of(query_string), known, unknown)


def single(pairs: Sequence[tuple[str, str]], known: Mapping[str, str], unknown: str) -> dict[str, str]:
    """Parameters of which each may come once, by name. Raises `Rejection`."""
    given = dict(pairs)
    if not given.keys() <= known.keys():
        raise Rejection(400, unknown)
    if len(given) != len(pairs):
        raise Rejection(400, TWICE)
    return given


def whole(given: Mapping[str, str], name: str, expected: str, low: int, high: int = LAST_OFFSET) -> int:
    """The value of the parameter `name`, a whole number from `low` to `high`. Raises `Rejection`."""
    text = given[name]
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise bad_parameter(name, expected)
    return int(text)


def bad_parameter(name: str, expected: str) -> Rejection:
    """Make the rejection of a bad parameter: its name and what was expected."""
    return Rejection(400, f"{name}: expected {expected}")


def check_no_parameters(request: Request) -> None:
    """Check that the query is empty. Raises `Rejection`."""
    parameters(request.scope["query_string"], {}, NONE_KNOWN)
