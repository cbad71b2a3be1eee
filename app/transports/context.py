"""What hooks may ask about the HTTP request that brought a message; worked out only if they do."""

from __future__ import annotations

from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

_PARAMETERS_LOOKED_AT = 100


class HttpContext:
    """The `exchanges.Context` of a request over HTTP."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name; the first of each."""
        found: dict[str, str] = {}
        for name, value in self._scope["headers"]:
            found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        return found

    @cached_property
    def cookies(self) -> Mapping[str, str]:
        """By name; none if the header is malformed."""
        jar: SimpleCookie = SimpleCookie()
        try:
            jar.load(self.headers.get("cookie", ""))
        except CookieError:
            return {}
        return {name: morsel.value for name, morsel in jar.items()}

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The parameters of the URL; the first of each."""
        found: dict[str, str] = {}
        text = self._scope["query_string"].decode("latin-1")
        for name, value in parse_qsl(text, keep_blank_values=True)[:_PARAMETERS_LOOKED_AT]:
            found.setdefault(name, value)
        return found

    @property
    def path(self) -> str:
        """Of the URL, decoded."""
        path: str = self._scope["path"]
        return path

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        scheme: str = self._scope["scheme"]
        return scheme

    @property
    def address(self) -> str:
        """The peer's IP address; empty where the server does not know it."""
        client = self._scope.get("client")
        return client[0] if client else ""
