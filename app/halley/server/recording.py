"""The [[record]] rules of the settings, as the history uses them."""

from __future__ import annotations

from halley.broker.errors import InvalidName
from halley.history.rules import Rules, parse_age
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.protocols.wamp.names import spaces_of, within
from halley.settings import Settings


class BadRecord(Exception):
    """A [[record]] rule whose pattern, age or realm is invalid; the text names the rule and the field."""


def rules_of(settings: Settings) -> Rules:
    """The [[record]] rules of the settings, as the history uses them. Raises `BadRecord`."""
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    spaces = spaces_of(settings)
    records = []
    for number, record in enumerate(settings.record):
        try:
            pattern = within(to_pattern(record.pattern, bounds), spaces[record.realm])
            records.append((pattern, parse_age(record.age), record.durable))
        except KeyError:
            raise BadRecord(f"record[{number}].realm: there is no realm {record.realm!r}") from None
        except InvalidName:
            raise BadRecord(f"record[{number}].pattern: {record.pattern!r} is not a channel or pattern") from None
        except ValueError as error:
            raise BadRecord(f"record[{number}].age: {error}") from None
    return Rules(records, sorted({*spaces.values()} - {""}))
