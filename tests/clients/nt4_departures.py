"""Where Halley departs from ntcore 2026.2.2, and why: by the number of the NA code, with all lines that differ.

In the scripts of `nt4_scenarios`, only ntcore's clients receive lines with `-`, only Halley's those with `+`.
"""

from __future__ import annotations

from typing import NamedTuple


class Departure(NamedTuple):
    """One departure; `lines` has the differing lines by script."""

    number: int
    why: str
    lines: dict[str, list[str]]


DEPARTURES = [
    Departure(
        1,
        "A request for another path than /nt/NAME is refused, not accepted and then closed.",
        {
            "1 no name": [
                "+ a: refused",
                "- a: joined v4.1.networktables.first.wpi.edu",
                "- a: closed without a word",
            ],
            "1 another path": [
                "+ a: refused",
                "- a: joined v4.1.networktables.first.wpi.edu",
                "- a: closed without a word",
            ],
        },
    ),
    Departure(
        3,
        "A client without a common subprotocol is refused, as the specification says.",
        {
            "3 unknown protocol": [
                "- a: joined None",
                "+ a: refused",
            ],
        },
    ),
    Departure(
        11,
        "A client's name gets a number only if another client has that name, as the specification says.",
        {
            "11 two of one name": [
                '+ c:   {"conn": "127.0.0.1", "id": "dup"}',
                '- c:   {"conn": "127.0.0.1", "id": "dup@2"}',
                '+ c:   {"conn": "127.0.0.1", "id": "dup@1"}',
                '- c:   {"conn": "127.0.0.1", "id": "dup@3"}',
                '- c:   {"conn": "127.0.0.1", "id": "dup@3"}',
                '+ c:   {"conn": "127.0.0.1", "id": "dup@1"}',
                '+ c:   {"conn": "127.0.0.1", "id": "dup"}',
                '- c:   {"conn": "127.0.0.1", "id": "dup@2"}',
                '+ c:   {"conn": "127.0.0.1", "id": "dup@1"}',
                '- c:   {"conn": "127.0.0.1", "id": "dup@3"}',
            ],
        },
    ),
    Departure(
        13,
        "Only the server publishes names that begin with $, as in later ntcore.",
        {
            "13 a reserved name": [
                '- a: announce \'$mine\' {"properties": {}, "type": "double"}',
                '- b: announce \'$mine\' {"properties": {}, "pubuid": 1, "type": "double"}',
            ],
        },
    ),
    Departure(
        20,
        "Unknown options are kept and shown in meta topics, as the specification says.",
        {
            "20 unknown options": [
                '+ a:   {"options": {"all": true, "colour": "red", "periodic": 0.01}, "topics": ["/x"], "uid": 1}',
                '- a:   {"options": {"all": true, "periodic": 0.01}, "topics": ["/x"], "uid": 1}',
            ],
        },
    ),
    Departure(
        30,
        "Every publish is answered by an announce, even without a subscription, as in later ntcore.",
        {
            "15 the rest of an array": [
                '+ b: announce \'/x\' {"properties": {}, "pubuid": 2, "type": "double"}',
            ],
            "30 a publisher once more": [
                '+ b: announce \'/x\' {"properties": {}, "pubuid": 2, "type": "double"}',
            ],
            "30 who only publishes": [
                '+ a: announce \'/x\' {"properties": {}, "pubuid": 1, "type": "double"}',
            ],
        },
    ),
    Departure(
        32,
        "A value that is not of its topic's type is ignored, as the specification says.",
        {
            "32 a value of another type": [
                "- a: value '/x' 1000000 4 'no'",
                "- d: value '/x' 1000000 4 'no'",
            ],
        },
    ),
    Departure(
        33,
        "A pubuid that is used again ends its earlier publisher, so that no topic without a publisher is left.",
        {
            "33 a pubuid twice": [
                "+ a: unannounce '/x' {}",
                "+ b: unannounce '/x' {}",
                "- a: value '/x' 1000000 1 1.0",
                "+ c: value '/y' 1000000 1 1.0",
            ],
        },
    ),
    Departure(
        34,
        "Each client that a topic was announced to gets its unannounce, not only subscribers, as specified.",
        {
            "34 the last publisher": [
                "+ b: unannounce '/x' {}",
                "+ c: unannounce '/x' {}",
            ],
            "34 publishers are told": [
                "+ a: unannounce '/x' {}",
                "+ b: unannounce '/x' {}",
            ],
        },
    ),
    Departure(
        46,
        "Each client that a topic was announced to gets its properties, with an `ack`, which strict clients need.",
        {
            "42 no longer cached": [
                '- a: properties \'/x\' {"update": {"cached": false}}',
                '+ a: properties \'/x\' {"ack": false, "update": {"cached": false}}',
                '- b: properties \'/x\' {"update": {"cached": false}}',
                '+ b: properties \'/x\' {"ack": true, "update": {"cached": false}}',
                '- a: properties \'/x\' {"update": {"cached": true}}',
                '+ a: properties \'/x\' {"ack": false, "update": {"cached": true}}',
                '- b: properties \'/x\' {"update": {"cached": true}}',
                '+ b: properties \'/x\' {"ack": true, "update": {"cached": true}}',
                '- c: properties \'/x\' {"update": {"cached": true}}',
                '+ c: properties \'/x\' {"ack": false, "update": {"cached": true}}',
            ],
            "45 a property deleted": [
                '- a: properties \'/x\' {"update": {"one": null, "three": 3}}',
                '+ a: properties \'/x\' {"ack": false, "update": {"one": null, "three": 3}}',
            ],
            "46 told to all": [
                '+ c: announce \'/x\' {"properties": {}, "pubuid": 1, "type": "double"}',
                '- a: properties \'/x\' {"update": {"one": 1}}',
                '+ a: properties \'/x\' {"ack": true, "update": {"one": 1}}',
                '+ b: properties \'/x\' {"ack": false, "update": {"one": 1}}',
                '+ c: properties \'/x\' {"ack": false, "update": {"one": 1}}',
            ],
            "46 by who knows nothing": [
                '- a: properties \'/x\' {"update": {"one": 1}}',
                '+ a: properties \'/x\' {"ack": false, "update": {"one": 1}}',
                '- b: properties \'/x\' {"update": {"one": 1}}',
                '+ b: properties \'/x\' {"ack": false, "update": {"one": 1}}',
            ],
        },
    ),
    Departure(
        54,
        "A client that has unsubscribed, or wants topics only, gets no more values, as in later ntcore.",
        {
            "54 unsubscribed": [
                "- a: value '/x' 1000000 1 1.0",
            ],
            "54 replaced": [
                "- a: value '/x' 1000000 1 1.0",
            ],
            "54 topics only from now on": [
                "- a: value '/x' 1000000 1 1.0",
            ],
        },
    ),
    Departure(
        59,
        "A meta topic that ends does not have an empty value before.",
        {
            "59 nobody publishes": [
                "- a: value '$pub$/x' 5",
            ],
        },
    ),
]

SOMETIMES = {"46 told to all": ['- b: properties \'/x\' {"update": {"one": 1}}']}
"""Lines that ntcore sends in some runs, seen on busy machines, and not in others, by script."""
