"""The parameters in the query of a request to an HTTP API.

A wrong one is answered with one fixed sentence, which repeats nothing that was sent but the name of an unknown one.
Of two with one name neither is taken, and nothing that is not UTF-8 is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from urllib.parse import parse_qsl

from halley.transports.guard import Rejection

NONE_KNOWN = "this path takes none"
TWICE = "duplicate parameter"
UNREADABLE = "the query is not UTF-8"

LAST_OFFSET = 2**63 - 1
_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,24}", re.ASCII)  # one that may be repeated: a token without a name is longer
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


def parameters(query_string: bytes, known: Mapping[str, str], expected: str) -> dict[str, str]:
    """The parameters of a query by name. Raises `Rejection` for one that is not in `known`; `expected` says what is.

    Raises `Rejection` also for a duplicate and for a query that is not UTF-8.
    """
    return unique_params(pairs_of(query_string), known, expected)


def unique_params(pairs: Sequence[tuple[str, str]], known: Mapping[str, str], expected: str) -> dict[str, str]:
    """Parameters of which each may come once, by name. Raises `Rejection`."""
    given = dict(pairs)
    for name in given:
        if name not in known:
            raise unknown_parameter(name, known, expected)
    if len(given) != len(pairs):
        raise Rejection(400, TWICE)
    return given


def unknown_parameter(name: str, known: Mapping[str, str], expected: str) -> Rejection:
    """Make the rejection of an unknown parameter: its name, the known one that it is nearly, and what was expected."""
    if not _NAME.fullmatch(name):
        return Rejection(400, f"unknown parameter; {expected}")
    near = get_close_matches(name.lower(), known, 1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    return Rejection(400, f"unknown parameter {name}{guess}; {expected}")


def int_param(given: Mapping[str, str], name: str, expected: str, low: int, high: int = LAST_OFFSET) -> int:
    """The value of the parameter `name`, a whole number from `low` to `high`. Raises `Rejection`."""
    number = number_of(given[name])
    if number is None or not low <= number <= high:
        raise bad_parameter(name, expected)
    return number


def number_of(text: str) -> int | None:
    """The whole number up to `LAST_OFFSET` that a text is; None for any other text."""
    number = int(text) if _WHOLE.fullmatch(text) else None
    return number if number is not None and number <= LAST_OFFSET else None


def bad_parameter(name: str, expected: str) -> Rejection:
    """Make the rejection of a bad parameter: its name and what was expected."""
    return Rejection(400, f"{name}: expected {expected}")


def check_no_parameters(query_string: bytes) -> None:
    """Check that the query is empty. Raises `Rejection`."""
    parameters(query_string, {}, NONE_KNOWN)
