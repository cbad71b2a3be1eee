"""Publication ids: numbers from 1 to 2^53 that look random, but whose order is known to the holder of a key.

WAMP requires random ids; an index over random numbers would cost a log half of its speed. So the ids are a counter,
shown through a permutation whose key stays with the log: with the key an event is found by its id without an index.
"""

from __future__ import annotations

import secrets

LAST_PUBLICATION = _MODULUS = 1 << 53


def new_key() -> int:
    """Create a random key for `Publications`; each log needs its own."""
    return secrets.randbits(106) | 1


class Publications:
    """The source of publication ids. `following` is the number of the last id issued before; `last` of the latest."""

    def __init__(self, key: int, following: int = 0) -> None:
        self._factor = key % _MODULUS | 1  # odd, so that it has an inverse
        self._shift = key // _MODULUS % _MODULUS
        self._inverse = pow(self._factor, -1, _MODULUS)
        self.last = following

    def next(self) -> int:
        """Issue a new id."""
        self.last = number = self.last + 1
        return (number * self._factor + self._shift) % _MODULUS + 1

    def number_of(self, publication: int) -> int:
        """The index of an id (1 to 2^53) in the order of issue: a later id has a higher number."""
        return (publication - 1 - self._shift) * self._inverse % _MODULUS
