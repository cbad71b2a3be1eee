"""Access control: the access rules, and the tokens by which clients prove their identity.

This package implements the broker's `Rights` and is independent of the protocols. Only this package reads keys. Its
messages and log lines never contain any part of a token.
"""
