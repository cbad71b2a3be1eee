"""Publication ids: numbers that look drawn from 1 to 2^53, and yet tell in which order they were given out.

WAMP wants them random; an index over random numbers would cost a log half of its speed. So they are counted, and shown
through a permutation whose key stays with the log: whoever has the key finds an event by its id without an index.
"""

from __future__ import annotations

import secrets

LAST_PUBLICATION = _MODULUS = 1 << 53


def new_key() -> int:
    """A key for `Publications`; it goes well with one log only."""
    return secrets.randbits(106) | 1


class Publications:
    """Gives out ids. `following` is the number of the last one given out before; `last` of the last one since."""

    def __init__(self, key: int, following: int = 0) -> None:
        self._factor = key % _MODULUS | 1  # odd, so that it has an inverse
        self._shift = key // _MODULUS % _MODULUS
        self._inverse = pow(self._factor, -1, _MODULUS)
        self.last = following

    def next(self) -> int:
        """An id that none was before."""
        self.last = number = self.last + 1
        return (number * self._factor + self._shift) % _MODULUS + 1

    def number_of(self, publication: int) -> int:
        """The how-manieth it is, for any from 1 to 2^53: a later one has a higher number."""
        return (publication - 1 - self._shift) * self._inverse % _MODULUS
