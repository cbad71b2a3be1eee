"""Transports: bytes in, bytes out, and every check before an engine sees a message. Only here is anything awaited."""
