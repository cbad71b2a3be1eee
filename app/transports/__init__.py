"""The only rooms that wait: bytes in, bytes out, and everything that is checked before an engine sees a message."""
