"""Frames are read as the library `websockets` reads them, whatever a peer sends and however it is cut.

But for two things: the library counts a control frame towards the size of the message that it interrupts, and refuses
one that closes the connection there (RFC 6455, 5.4, lets all of them come there).
"""

import logging
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frames import CLOSE, CONT, PING, PONG, TEXT, sent
from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import Frame
from websockets.protocol import State
from websockets.server import ServerProtocol

from halley.host.frames import BadFrame, FrameReader

MOST = 300
LOG = logging.getLogger("websockets.server")
LOG.setLevel(logging.WARNING)

FRAMES = st.builds(
    lambda opcode, data, flags, masked: sent(opcode, data, flags=flags, masked=masked),
    st.sampled_from((0, 0, 1, 1, 2, 8, 9, 10, 3, 11)),
    st.binary(max_size=140) | st.just(b"\x03\xe8") | st.just(b"\x03\xe8\xff") | st.binary(min_size=290, max_size=310),
    st.sampled_from((0x80, 0x80, 0x80, 0x00, 0x00, 0xC0, 0x90)),
    st.sampled_from((True,) * 9 + (False,)),
)


def parse_apart(read_exact, *, max_size, parse=Frame.parse, **options):
    """Parse a frame as the library does, but with a limit of their own for control frames (RFC 6455, 5.5)."""
    first = yield from read_exact(2)
    head = [first]

    def read(nbytes):
        return head.pop() if head else (yield from read_exact(nbytes))

    if first[0] & 0x0F < CLOSE:
        return (yield from parse(read, max_size=max_size, **options))
    try:
        return (yield from parse(read, max_size=125, **options))
    except PayloadTooBig:
        raise ProtocolError("control frame too long") from None


def as_the_library_reads(pieces):
    """Return the frames that `websockets` finds, and the code and reason with which it closes, if it does."""
    parser = ServerProtocol(state=State.OPEN, max_size=MOST, logger=LOG)
    with mock.patch.object(Frame, "parse", parse_apart):
        for piece in pieces:
            parser.receive_data(piece)
    found = [(int(each.opcode), each.fin, bytes(each.data)) for each in parser.events_received()]
    close = parser.close_sent
    return found, None if parser.parser_exc is None else (close.code, close.reason)


def as_we_read(pieces):
    """Return the same of `FrameReader`."""
    reader, found = FrameReader(MOST), []
    for piece in pieces:
        if not reader.is_over:
            reader.feed(piece)
        try:
            while (each := reader.read()) is not None:
                found.append(each)
        except BadFrame as wrong:
            return found, (wrong.code, wrong.reason)
    return found, None


@given(st.lists(FRAMES, max_size=6), st.data())
def test_any_bytes_are_read_as_by_the_library(frames, data):
    """S27: frames in any order, with any byte changed and cut anywhere: the same frames, the same code and reason."""
    stream = bytearray(b"".join(frames))
    if stream and data.draw(st.booleans()):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [bytes(stream[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    ours, theirs = as_we_read(pieces), as_the_library_reads(pieces)
    if theirs[1] == (1002, "incomplete fragmented message"):
        *before, (opcode, _, _) = ours[0]
        ours, theirs = (before, opcode, ours[1]), (theirs[0], CLOSE, None)
    assert ours == theirs


@pytest.mark.parametrize("control", [PING, PONG])
def test_a_control_frame_within_a_message_has_a_limit_of_its_own(control):
    """RFC 6455, 5.4 and 5.5: it may come between fragments of a message that has all the bytes that it may have."""
    begin, end = sent(TEXT, b"x" * (MOST - 1), flags=0), sent(CONT, b"x")
    found, wrong = as_we_read([begin, sent(control, b"?" * 125), end, sent(control, b"!" * 126)])
    assert [(opcode, len(data)) for opcode, _, data in found] == [(TEXT, MOST - 1), (control, 125), (CONT, 1)]
    assert wrong == (1002, "control frame too long")
    assert as_we_read([begin, sent(control, b"?" * 125), sent(CONT, b"xx")])[1][0] == 1009


def test_a_control_frame_that_is_too_long_is_refused_before_its_data():
    """Its length alone tells: nothing is kept until all of it has arrived."""
    assert as_we_read([sent(PING, b"", length=2**32)]) == ([], (1002, "control frame too long"))
