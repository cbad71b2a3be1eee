"""The client of the history: reads events and stored rows over HTTP, and erases events.

It has no session. Every response is JSON lines, which are passed on as they are received; a response that ends too
early raises `OutcomeUnknown`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlsplit

import httpx

from halley.client.errors import ClientError, OutcomeUnknown, Refused, Unreachable
from halley.client.wire import http_client, reason_of, root_url

_SILENCE_S = 60.0
_REASON_CHARS = 300


class HistoryClient:
    """A client of one server's history. Raises `ValueError` for an invalid URL or token."""

    def __init__(self, server: str, *, token: str | None = None) -> None:
        self._root = root_url(server)
        self._http = http_client(self._root, token, {"Accept": "application/x-ndjson"}, _SILENCE_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def pages(self, channel: str, filters: Mapping[str, str]) -> AsyncIterator[list[str]]:
        """Yield all events of a channel or pattern, page by page, each event a line of JSON. Raises `ClientError`.

        `filters` are parameters of `GET /history/CHANNEL` (`halley/history/README.md`).
        """
        cursor: dict[str, str] = {}
        while True:
            async with self._stream("GET", f"history{quote(channel, safe='/*!~()$@')}", {**filters, **cursor}) as page:
                yield [line async for lines in _lines(page) for line in lines]
                following = _next(page, "cursor")
            if following is None:
                return
            cursor = {"cursor": following}

    async def log_head(self) -> dict[str, Any]:
        """Return what the log has: its `log_id`, its `first` and its `next` offset, and all else that `/log/head` has.

        Raises `ClientError`.
        """
        async with self._stream("GET", "log/head", {}) as answer:
            head: dict[str, Any] = json.loads(await answer.aread())
            return head | {"log_id": str(head["log_id"]), "first": int(head["first"]), "next": int(head["next"])}

    async def rows(self, first: int, last: int) -> AsyncIterator[tuple[int, list[str]]]:
        """Yield the stored rows from offset `first` to `last`: lines of JSON, with the offset of the last line.

        Raises `ClientError`.
        """
        while first <= last:
            async with self._stream("GET", "log", {"from_offset": str(first), "until_offset": str(last)}) as answer:
                async for lines in _lines(answer):
                    yield int(json.loads(lines[-1])["offset"]), lines
                if (following := int(_next(answer, "from_offset") or last + 1)) <= first:
                    raise ValueError(following)  # else a faulty server would be asked for the same rows for ever
                first = following

    async def purge(self, what: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Erase events of a `channel` or a `publisher`, and yield the progress; the last dictionary has the result.

        Progress is `{"done", "of"}`; the result is `{"erased": COUNT}`, or `{"error": TEXT}`. In a cluster it
        also has `missing`, the names of nodes that will erase later, if there are any. Raises `ClientError`.
        """
        async with self._stream("POST", "log/purge", {}, json=what) as answer:
            async for lines in _lines(answer):
                for line in lines:
                    yield {**json.loads(line)}

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, parameters: Mapping[str, str], **more: Any
    ) -> AsyncIterator[httpx.Response]:
        url = self._root.join(path)
        is_answered = False
        try:
            async with self._http.stream(method, url, params=dict(parameters), **more) as answer:
                is_answered = True
                if answer.status_code not in (200, 202):
                    raise await _refusal(answer)
                yield answer
        except httpx.HTTPError as error:
            reason = reason_of(error)
            if not is_answered:
                raise Unreachable(f"no response from {self._root.copy_with(userinfo=b'')} ({reason})") from error
            raise OutcomeUnknown(f"the response ended too early ({reason})") from error
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
            raise OutcomeUnknown("the response is not that of a Halley server") from error


def _next(page: httpx.Response, parameter: str) -> str | None:
    """Return where the next page begins; None after the last. No more of its link is used: it could name any server."""
    link = page.links.get("next", {}).get("url")
    return parse_qs(urlsplit(link).query)[parameter][0] if link else None


async def _lines(answer: httpx.Response) -> AsyncIterator[list[str]]:
    """Yield the complete lines of each part of the response as it is received.

    Only a line feed ends one: httpx's own lines end at U+2028 too, for example, which JSON strings may contain.
    """
    rest = b""
    async for part in answer.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if lines:
            yield [line.decode() for line in lines]
    if rest:
        raise OutcomeUnknown("the response ended too early")


async def _refusal(answer: httpx.Response) -> ClientError:
    text = ""
    async for part in answer.aiter_text():
        text += part
        if len(text) > _REASON_CHARS:
            break
    what = f"HTTP {answer.status_code}: {text[:_REASON_CHARS].strip() or answer.reason_phrase}"
    if answer.status_code in (429, 503):
        return Unreachable(what)
    return Refused(what, status=answer.status_code)
