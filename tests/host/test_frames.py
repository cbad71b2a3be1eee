"""Frames are read as the library `websockets` reads them, whatever a peer sends and however it is cut."""

import logging

from hypothesis import given
from hypothesis import strategies as st
from support.frames import sent
from websockets.protocol import State
from websockets.server import ServerProtocol

from app.host.frames import BadFrame, FrameReader

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


def as_the_library_reads(pieces):
    """Return the frames that `websockets` finds, and the code and reason with which it closes, if it does."""
    parser = ServerProtocol(state=State.OPEN, max_size=MOST, logger=LOG)
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
    assert as_we_read(pieces) == as_the_library_reads(pieces)
