"""A client of pyntcore, which is ntcore's own in C++ and runs in its own threads."""

from __future__ import annotations

from typing import Any

from clients.foreign import until
from clients.nt4_servers import require_ntcore

TYPED = {
    "boolean": ("Boolean", False),
    "double": ("Double", 0.0),
    "int": ("Integer", 0),
    "float": ("Float", 0.0),
    "string": ("String", ""),
    "boolean[]": ("BooleanArray", []),
    "double[]": ("DoubleArray", []),
    "int[]": ("IntegerArray", []),
    "float[]": ("FloatArray", []),
    "string[]": ("StringArray", []),
}
"""pyntcore's name of a type, and a subscriber's default value; values of every other type are bytes."""


class NtcoreClient:
    """A client of a server at a port of this machine; once started, it connects again whenever it is disconnected."""

    def __init__(self, name: str, port: int) -> None:
        self.ntcore = require_ntcore()
        self.name = name
        self.port = port
        self.instance = self.ntcore.NetworkTableInstance.create()

    def start(self) -> None:
        """Begin to connect in the background."""
        self.instance.startClient4(self.name)
        self.instance.setServer("127.0.0.1", self.port)

    async def connected(self) -> None:
        """Wait until the client is connected and knows the server's time; before that it sends nothing."""
        await self.until(lambda: self.instance.isConnected() and self.instance.getServerTimeOffset() is not None)

    def options(self, **changed: Any) -> Any:
        """Options to publish or subscribe: quickly, and every value, unless changed."""
        usual = {"periodic": 0.01, "sendAll": True, "keepDuplicates": True, "pollStorage": 1_000}
        return self.ntcore.PubSubOptions(**(usual | changed))

    def topic(self, name: str, type_name: str = "double") -> Any:
        """The pyntcore topic of that name and type."""
        return getattr(self.instance, f"get{TYPED.get(_base(type_name), ('Raw',))[0]}Topic")(name)

    def publish(self, name: str, type_name: str = "double", **options: Any) -> Any:
        """A publisher; `close` ends it."""
        topic, wished = self.topic(name, type_name), self.options(**options)
        if type_name == "json":
            return topic.publishEx(type_name, {}, wished)
        return topic.publish(wished) if type_name in TYPED else topic.publish(type_name, wished)

    def subscribe(self, name: str, type_name: str = "double", **options: Any) -> Any:
        """A subscriber; `close` ends it."""
        topic, wished = self.topic(name, type_name), self.options(**options)
        if type_name == "json":
            return topic.subscribeEx(type_name, "", wished)
        if type_name in TYPED:
            return topic.subscribe(TYPED[type_name][1], wished)
        return topic.subscribe(type_name, b"", wished)

    async def hears(self, subscriber: Any, *values: Any) -> list[Any]:
        """Wait for as many values, and assert that they are these; returns them with their times."""
        heard: list[Any] = []

        def is_all() -> bool:
            heard.extend(subscriber.readQueue())
            return len(heard) >= len(values)

        await self.until(is_all, heard)
        assert [each.value for each in heard] == list(values)
        return heard

    async def until(self, condition: Any, *seen: Any) -> None:
        """Wait until a condition is true; at the deadline, fail with what was seen."""
        try:
            await until(condition)
        except TimeoutError:
            raise AssertionError(f"{self.name} timed out: {seen}") from None

    async def close(self) -> None:
        """Disconnect and release the client."""
        self.instance.stopClient()
        self.ntcore.NetworkTableInstance.destroy(self.instance)


def _base(type_name: str) -> str:
    """The type whose values a type has: those of `json` are strings."""
    return "string" if type_name == "json" else type_name
