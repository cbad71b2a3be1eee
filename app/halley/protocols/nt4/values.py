"""Binary messages: streams of MessagePack arrays `[id, timestamp, type, value]` (NA21 to NA26).

A value is encoded once for all clients, since a topic has the same id for all.

This is the hot path: a robot sends thousands of values in a second, most of them one number each. So each value is read
by a few calls of `msgpack` in a row, which is configured to make no array and no map; data that claims to be one costs
nothing. Arrays are first skipped, which finds those with a false length, and then decoded by `msgspec`, which stops at
the first element of another type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple

from msgpack import OutOfData, Packer, Unpacker
from msgspec import DecodeError, Meta, ValidationError
from msgspec.msgpack import Decoder

from halley.protocols.nt4.errors import BadValue, Undecodable
from halley.protocols.nt4.messages import together
from halley.protocols.nt4.types import (
    ARRAY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    LARGEST_INT,
    LEAST_INT,
    RAW,
    STRING,
    accept,
)

TIME_ID = -1

BATCH_VALUES, BATCH_BYTES = 256, 16_384
"""How much is read before other clients get their turn; the last value is read to its end."""

_CLASSES: dict[int, type] = {BOOLEAN: bool, DOUBLE: float, STRING: str, RAW: bytes}
"""The types whose values are accepted as they are, with their classes in Python."""

_ARRAYS: dict[int, Callable[[bytes], list[Any]]] = {
    ARRAY + BOOLEAN: Decoder(list[bool]).decode,
    ARRAY + DOUBLE: Decoder(list[float]).decode,
    ARRAY + INT: Decoder(list[Annotated[int, Meta(ge=LEAST_INT, le=LARGEST_INT)]]).decode,
    ARRAY + FLOAT: Decoder(list[float]).decode,
    ARRAY + STRING: Decoder(list[str]).decode,
}

_ARRAY_32 = b"\xdd"
"""The first byte of an array of 65,536 elements or more."""

_OF_SINGLES = frozenset({FLOAT, ARRAY + FLOAT})
_OF_FLOATS = _OF_SINGLES | {DOUBLE, ARRAY + DOUBLE}

_pack: Callable[[object], bytes] = Packer().pack
_pack_single: Callable[[object], bytes] = Packer(use_single_float=True).pack


TOO_LONG = -2
"""In place of the type's number for an array with too many elements; its value is None."""


class TimeAsked(NamedTuple):
    """A request for the time; `rest` are the bytes of its type and value, which are sent back unchanged (NA26)."""

    rest: bytes


Received = tuple[int, int, int, Any]
"""A value: the publisher's id, the time in microseconds, the type's number, and the accepted value (`types.py`)."""


def read(data: bytes, max_elements: int) -> Iterator[list[Received | TimeAsked]]:
    """Yield the values of a binary message in order, in batches that are decoded when they are asked for.

    An array of more than `max_elements` is `TOO_LONG`: even a small one may take much time and memory. Raises
    `Undecodable` after the values before the mistake.
    """
    size = len(data)
    unpacker = Unpacker(max_buffer_size=size or 1, max_array_len=0, max_map_len=0)
    unpacker.feed(data)
    while (at := unpacker.tell()) < size:
        batch: list[Received | TimeAsked] = []
        mistake = None
        try:
            _read_batch(unpacker, data, min(size, at + BATCH_BYTES), max_elements, batch)
        except Undecodable as error:
            mistake = error
        if batch:
            yield batch
        if mistake:
            raise mistake


def _read_batch(
    unpacker: Unpacker, data: bytes, end: int, max_elements: int, batch: list[Received | TimeAsked]
) -> None:
    """Read values into `batch`, until it is full or the index `end` is reached. Raises `Undecodable`."""
    read_header, unpack, place, add = unpacker.read_array_header, unpacker.unpack, unpacker.tell, batch.append
    part = "message"
    try:
        while place() < end and len(batch) < BATCH_VALUES:
            part = "message"
            if read_header() != 4:
                raise Undecodable("expected an array of 4 elements")
            part = "id"
            ident = unpack()
            if type(ident) is not int or ident > LARGEST_INT:
                raise Undecodable("the id is not a 64-bit integer")
            part = "timestamp"
            time_us = unpack()
            if type(time_us) is not int or time_us > LARGEST_INT:
                raise Undecodable("the timestamp is not a 64-bit integer")
            if ident == TIME_ID:
                add(TimeAsked(_skip(unpacker, data, 2)))
                continue
            part = "type"
            number = unpack()
            if type(number) is not int:  # a map or an array is not even hashable
                raise Undecodable("the type is not an integer")
            part = "value"
            if number in _ARRAYS:
                add((ident, time_us, *_array(unpacker, data, number, max_elements)))
                continue
            value = unpack()
            kind = type(value)
            if kind is not _CLASSES.get(number) and not (kind is int and number == INT and value <= LARGEST_INT):
                value = accept(number, value)
            add((ident, time_us, number, value))
    except (OutOfData, BadValue, ValidationError, ValueError) as error:
        raise Undecodable(_why(error, part)) from None


def _why(error: Exception, part: str) -> str:
    """Return what is wrong with a part of a message."""
    if isinstance(error, OutOfData):
        return f"the message ends within the {part}"
    if isinstance(error, BadValue | ValidationError):
        return str(error)
    # msgspec raises a `DecodeError` for it since 0.23, and here for nothing else: other invalid bytes fail in `_skip`.
    if isinstance(error, UnicodeDecodeError | DecodeError):
        return f"the {part} is not UTF-8"
    return f"the {part} is of the wrong type"  # msgpack's error for arrays and maps where none may be, invalid bytes


def _array(unpacker: Unpacker, data: bytes, number: int, max_elements: int) -> tuple[int, Any]:
    """Read an array: its type's number and its elements."""
    if _claimed_elements(data, unpacker.tell()) > max_elements:
        unpacker.skip()
        return TOO_LONG, None
    values = _ARRAYS[number](_skip(unpacker, data, 1))
    return number, accept(number, values) if number == ARRAY + FLOAT else values


def _claimed_elements(data: bytes, start: int) -> int:
    """Return the number of elements that a long array claims to have; 0 for any other value."""
    return int.from_bytes(data[start + 1 : start + 5], "big") if data[start : start + 1] == _ARRAY_32 else 0


def _skip(unpacker: Unpacker, data: bytes, count: int) -> bytes:
    """Skip the next `count` elements of any type, and return their bytes."""
    start = unpacker.tell()
    for _ in range(count):
        unpacker.skip()
    return data[start : unpacker.tell()]


def encode(topic_id: int, time_us: int, number: int, value: Any) -> bytes:
    """Encode an accepted value: types 3 and 19 as 32-bit floats, doubles as 64-bit ones, even if integral."""
    if type(value) is not float and number in _OF_FLOATS:
        value = float(value) if number < ARRAY else list(map(float, value))
    pack = _pack_single if number in _OF_SINGLES else _pack
    return pack((topic_id, time_us, number, value))


def time_answer(now_us: int, asked: TimeAsked) -> bytes:
    """Return the answer to a request for the time; `now_us` is the server's time in microseconds."""
    return b"\x94\xff%b%b" % (_pack(now_us), asked.rest)


def packed(values: Iterable[bytes]) -> Iterator[bytes]:
    """Yield encoded values as binary messages of about `messages.MESSAGE_BYTES`, in order."""
    return map(b"".join, together(values, 0))
