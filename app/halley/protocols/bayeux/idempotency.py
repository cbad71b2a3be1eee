"""What a client has sent with an idempotency key, by which a repeat of its publish is known (`broker/commits.py`).

It is the data before extensions and listeners of a program, which may change them, and otherwise in a repeat: one that
adds the time would make each repeat another publish.
"""

from __future__ import annotations

from halley.protocols.bayeux.binary import bytes_of
from halley.protocols.bayeux.messages import ABSENT, Message, encode_data
from halley.protocols.value_digest import digest_of

KEY = "idempotency_key"
"""The name of the key in a message's `ext`."""


def sent_digest(message: Message, *, reads_bytes: bool) -> bytes | None:
    """The digest of a message that no extension has seen; None if it has no key, or no data that are JSON.

    `reads_bytes` says whether CometD's form of bytes stands for them, as `bayeux.bytes` has it.
    """
    if message.ext is None or KEY not in message.ext or message.data is ABSENT:
        return None
    as_text = bytes_of(message.data, message.ext) if reads_bytes else None
    try:
        return digest_of(encode_data(message.data if as_text is None else as_text))
    except TypeError:  # of a program
        return None


def key_digest(message: Message, payload: bytes) -> bytes | None:
    """The digest of a message that is being published, whose data are `payload` before any listener has seen them.

    None where an extension has given it the key: its client has sent none.
    """
    return digest_of(payload) if message.sent is message.fields else message.sent_digest
