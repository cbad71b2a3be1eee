"""Plays a script of raw NT4 frames to a server and records what each client received, to compare servers.

A script is a list of steps `(client, what)`: a client connects at its first step; `what` is a text frame (str), a
binary frame (bytes), or one of the classes below. Each step waits until all its effects have been received.
What differs between runs is made equal: topics' ids become names, and the server's own times become `now`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgpack
from support import nt4
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

_RECENT_US = 10**15
"""Larger times are the present; the scripts' own are smaller."""


@dataclass(frozen=True)
class Join:
    """Connect in another way than by default.

    `is_bare`: subscribe to nothing, so that the server writes only because of the script.
    """

    path: str | None = None
    subprotocols: tuple[str, ...] = ()
    name: str | None = None
    is_bare: bool = False


class Leave:
    """Close the connection."""


Script = list[tuple[str, Any]]


async def played(url: str, script: Script) -> list[str]:
    """Play a script and return what was received, a line each, behind a line for each step."""
    async with AsyncExitStack() as stack:
        marker = await stack.enter_async_context(await nt4.connect(url, "marker"))
        await marker.subscribe("$clients")
        stage = _Stage(url, marker, stack)
        for number, (who, what) in enumerate(script):
            stage.lines.append(f"> {number} {who}")
            await stage.do(who, what)
            await stage.settle()
        return [stage.plain(line) for line in stage.lines]


class _Stage:
    def __init__(self, url: str, marker: nt4.NtClient, stack: AsyncExitStack) -> None:
        self.lines: list[str] = []
        self._url = url
        self._marker = marker
        self._stack = stack
        self._clients: dict[str, nt4.NtClient] = {}
        self._bare: set[str] = set()
        self._present = Counter[str]()
        self._named = Counter[str]({marker.name: 1})

    async def do(self, who: str, what: Any) -> None:
        if who not in self._clients and not isinstance(what, Join):
            await self._join(who, Join())
        if isinstance(what, Join):
            await self._join(who, what)
        elif what is Leave:
            client = self._clients.pop(who)
            await client.close()
            await self._until_present(client.name, -1)
        else:
            await self._clients[who].send_raw(what)

    async def settle(self) -> None:
        """Wait until all clients have received what is due, and record it."""
        for who, client in [*self._clients.items()]:
            try:
                await client.time()
            except ConnectionClosed as error:
                await self._lost(who, client, error)
        number = await self._marker.mark()
        for who, client in self._clients.items():
            heard = await (client.quiet() if who in self._bare else client.marked(number))
            self._tell(who, heard)
            self.lines += [f"{who}: time {each[1]} {each[2]!r}" for each in client.times]
            client.times.clear()

    def plain(self, line: str) -> str:
        """Remove the numbers that ntcore gives to clients whose names are unique without them (NA11)."""
        return re.sub(r"([\w /]+)@\d+", lambda found: found[self._named[found[1]] == 1], line)

    async def _join(self, who: str, how: Join) -> None:
        try:
            client = await nt4.connect(self._url, how.name or who, *how.subprotocols, path=how.path)
        except (InvalidStatus, InvalidMessage):
            self.lines.append(f"{who}: refused")
            return
        await self._stack.enter_async_context(client)
        self.lines.append(f"{who}: joined {client.socket.subprotocol}")
        try:
            await (client.time() if how.is_bare else client.heed_marks())
        except ConnectionClosed as error:
            await self._lost(who, client, error)
            return
        if nt4.RTT not in how.subprotocols:
            await self._until_present(client.name, 1)
            self._named[client.name] += 1
        self._clients[who] = client
        if how.is_bare:
            self._bare.add(who)

    async def _lost(self, who: str, client: nt4.NtClient, error: ConnectionClosed) -> None:
        self._clients.pop(who, None)
        self._tell(who, client.left())
        self.lines.append(f"{who}: closed {error.rcvd.code if error.rcvd else 'without a word'}")

    async def _until_present(self, name: str, more: int) -> None:
        """Wait until `$clients` has `more` more clients of that name than before."""
        self._present[name] += more
        while True:
            value = await self._marker.value("$clients")
            ids = [each["id"] for each in msgpack.unpackb(value.value)]
            if sum(name in (each, each.rpartition("@")[0]) for each in ids) == self._present[name]:
                return

    def _tell(self, who: str, heard: list[nt4.Message]) -> None:
        last = {each.name: each for each in heard if isinstance(each, nt4.Value)}
        for each in heard:
            if not isinstance(each, nt4.Value):
                params = {name: value for name, value in each.params.items() if name not in ("id", "name")}
                shown = json.dumps(params, sort_keys=True)
                self.lines.append(f"{who}: {each.method} {each.params['name']!r} {shown}")
            elif not each.name.startswith("$"):
                time = "now" if each.time_us > _RECENT_US else each.time_us
                self.lines.append(f"{who}: value {each.name!r} {time} {each.number} {each.value!r}")
            elif last[each.name] is each:  # the last value of a meta topic counts, not the number of values
                self.lines += [f"{who}: value {each.name!r} {each.number}", *(f"{who}:   {row}" for row in _rows(each))]


def _rows(value: nt4.Value) -> list[str]:
    """The rows of a meta topic, sorted, without ports and `ver`; `periodic` has 32 bits in ntcore (NA58, NA59)."""
    rows = msgpack.unpackb(value.value)
    for row in rows:
        row.pop("ver", None)
        if "conn" in row:
            row["conn"] = row["conn"].rpartition(":")[0]
        if "periodic" in row.get("options", {}):
            row["options"]["periodic"] = round(row["options"]["periodic"], 6)
    return sorted(json.dumps(row, sort_keys=True) for row in rows)
