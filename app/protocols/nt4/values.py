"""Binary messages: streams of MessagePack arrays `[id, timestamp, type, value]` (nt4.md A21 to A26).

What a server writes of one value is the same for all clients, since a topic has one id; so it is encoded once.

This is the hot path: a robot sends thousands of values in a second, most of them one number each. So each value is read
by a few calls of `msgpack` in a row, which is told to make no array and no map; what claims to be one costs nothing.
Arrays are first walked over, which finds those whose length lies, and then made by `msgspec`, which stops at the first
element of another type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgpack import OutOfData, Packer, Unpacker
from msgspec import Meta, ValidationError
from msgspec.msgpack import Decoder

from app.protocols.nt4.packets import together
from app.protocols.nt4.types import (
    ARRAY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    LARGEST_INT,
    LEAST_INT,
    RAW,
    STRING,
    BadValue,
    accept,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TIME_ID = -1

BATCH_VALUES, BATCH_BYTES = 256, 16_384
"""How much is read before others get their turn; a value that begins within is read to its end."""

_CLASSES: dict[int, type] = {BOOLEAN: bool, DOUBLE: float, STRING: str, RAW: bytes}
"""Where a value of that class is accepted as it is."""

_ARRAYS: dict[int, Callable[[bytes], list[Any]]] = {
    ARRAY + BOOLEAN: Decoder(list[bool]).decode,
    ARRAY + DOUBLE: Decoder(list[float]).decode,
    ARRAY + INT: Decoder(list[Annotated[int, Meta(ge=LEAST_INT, le=LARGEST_INT)]]).decode,
    ARRAY + FLOAT: Decoder(list[float]).decode,
    ARRAY + STRING: Decoder(list[str]).decode,
}

_ARRAY_32 = b"\xdd"
"""How an array of 65,536 elements or more begins."""

_FLOATS, _DOUBLES = (FLOAT, ARRAY + FLOAT), (DOUBLE, ARRAY + DOUBLE)

_pack: Callable[[object], bytes] = Packer().pack
_pack_single: Callable[[object], bytes] = Packer(use_single_float=True).pack


TOO_LONG = -2
"""Stands for the number of its type where an array is longer than it may be; its value is None."""


class Undecodable(Exception):
    """A message that is none; what was wrong stands in the text, which the peer is told."""


class TimeAsked(NamedTuple):
    """Somebody wants to know the time. `rest` are the bytes of type and value, to be sent back as they are (A26)."""

    rest: bytes


Received = tuple[int, int, int, Any]
"""A value: the publisher's id, its time in microseconds, the number of its type, and itself, accepted (`types.py`)."""


def read(data: bytes, most_elements: int) -> Iterator[list[Received | TimeAsked]]:
    """What a binary message has, in order, a batch at a time; each is decoded when it is due.

    An array of more than `most_elements` is `TOO_LONG`: it need not be large to take long, and much room in memory.
    Raises `Undecodable` behind what came before the mistake.
    """
    size = len(data)
    unpacker = Unpacker(max_buffer_size=size or 1, max_array_len=0, max_map_len=0)
    unpacker.feed(data)
    tell = unpacker.tell
    while tell() < size:
        batch: list[Received | TimeAsked] = []
        mistake = None
        end = min(size, tell() + BATCH_BYTES)
        try:
            while tell() < end and len(batch) < BATCH_VALUES:
                batch.append(_next(unpacker, data, most_elements))
        except Undecodable as error:
            mistake = error
        if batch:
            yield batch
        if mistake:
            raise mistake


def _next(unpacker: Unpacker, data: bytes, most_elements: int) -> Received | TimeAsked:
    unpack = unpacker.unpack
    part = "message"
    try:
        if unpacker.read_array_header() != 4:
            raise Undecodable("an array that is not of 4")
        part = "id"
        ident = unpack()
        if type(ident) is not int or ident > LARGEST_INT:
            raise Undecodable("the id is no integer of 64 bits")
        part = "timestamp"
        time_us = unpack()
        if type(time_us) is not int or time_us > LARGEST_INT:
            raise Undecodable("the timestamp is no integer of 64 bits")
        if ident == TIME_ID:
            return TimeAsked(_skip(unpacker, data, 2))
        part = "type"
        number = unpack()
        part = "value"
        if number in _ARRAYS and _claimed_elements(data, unpacker.tell()) > most_elements:
            unpacker.skip()
            return ident, time_us, TOO_LONG, None
        return ident, time_us, number, _value(unpacker, data, number)
    except OutOfData:
        raise Undecodable(f"it ends within the {part}") from None
    except UnicodeDecodeError:
        raise Undecodable(f"the {part} is no UTF-8") from None
    except (BadValue, ValidationError) as error:
        raise Undecodable(str(error)) from None
    except ValueError:  # what msgpack calls all else: arrays and maps where none may be, and bytes that begin nothing
        raise Undecodable(f"the {part} is of no kind that it can be") from None


def _value(unpacker: Unpacker, data: bytes, number: object) -> Any:
    if type(number) is not int:
        raise BadValue("the type is no integer")
    decode = _ARRAYS.get(number)
    if decode is None:
        value = unpacker.unpack()
        kind = type(value)
        if kind is _CLASSES.get(number) or (kind is int and number == INT and value <= LARGEST_INT):
            return value
        return accept(number, value)
    values = decode(_skip(unpacker, data, 1))
    return accept(number, values) if number == ARRAY + FLOAT else values


def _claimed_elements(data: bytes, start: int) -> int:
    """How many elements an array says that it has, if it is a long one."""
    return int.from_bytes(data[start + 1 : start + 5], "big") if data[start : start + 1] == _ARRAY_32 else 0


def _skip(unpacker: Unpacker, data: bytes, count: int) -> bytes:
    """The bytes of the next so many elements, whatever they are."""
    start = unpacker.tell()
    for _ in range(count):
        unpacker.skip()
    return data[start : unpacker.tell()]


def encode(topic_id: int, time_us: int, number: int, value: Any) -> bytes:
    """One accepted value as clients get it; floats of type 3 and 19 in 32 bits, doubles in 64, ints for them too."""
    if number in _DOUBLES:
        value = float(value) if number == DOUBLE else list(map(float, value))
    elif number in _FLOATS:
        value = float(value) if number == FLOAT else list(map(float, value))
        return _pack_single((topic_id, time_us, number, value))
    return _pack((topic_id, time_us, number, value))


def time_answer(now_us: int, asked: TimeAsked) -> bytes:
    """What to say to somebody who wants to know the time."""
    return b"\x94\xff%b%b" % (_pack(now_us), asked.rest)


def packed(values: Iterable[bytes]) -> Iterator[bytes]:
    """Encoded values as binary messages of about `packets.MESSAGE_BYTES`, in order."""
    return map(b"".join, together(values, 0))
