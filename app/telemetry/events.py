"""Every event that has a line in the log, with what it says. One word for one thing; the README shows this table."""

from __future__ import annotations

from typing import NamedTuple


class LogEvent(NamedTuple):
    """What a line means, and how many of a kind are written in one second; further ones are counted.

    `kind` is the field that tells kinds of it apart: so that a flood of one does not hide another. It must take few
    values, none of them a peer's own words.
    """

    meaning: str
    per_s: int = 1
    kind: str = ""


LIFE = 1_000_000  # no one outside can make these happen often
SESSIONS = 20

EVENTS: dict[str, LogEvent] = {
    "started": LogEvent(
        "versions, how many `open_files` there may be, and where those `settings` come from that somebody has set", LIFE
    ),
    "listening": LogEvent("a listener serves: `url`", LIFE),
    "not_listening": LogEvent("the clients' listener takes no further connections: `url`", LIFE),
    "history_opened": LogEvent(
        "the event history: its folder, `log_id`, `first` offset, the `next` one, its size", LIFE
    ),
    "history_damaged": LogEvent(
        "offsets `first` to `last` cannot be read, or were lost: in which `file`, and why", 100
    ),
    "history_unavailable": LogEvent(
        "the log takes nothing, and durable publishes are refused: `reason` is disk or free_bytes", LIFE
    ),
    "history_recovered": LogEvent("it does again", LIFE),
    "consumer_overtaken": LogEvent(
        "events that a `consumer` had not read are deleted: it was at `offset`, and what is left begins at `first`", 100
    ),
    "consumer_ignored": LogEvent("a `file` in the folder of consumers is none, or says nothing: `reason`", 10),
    "persistent_topics_damaged": LogEvent(
        "what of NetworkTables' persistent topics cannot be brought back: `what`", 20
    ),
    "session_opened": LogEvent("a client has a session: its address and agent", SESSIONS),
    "session_closed": LogEvent(
        "it has ended: `reason` is disconnected, expired, dismissed, slow_consumer or token_expired; "
        "of WAMP goodbye, connection_lost, killed, protocol_violation, aborted or drained too; "
        "of NetworkTables connection_lost, binary_decode_error or drained",
        SESSIONS,
        "reason",
    ),
    "request_refused": LogEvent("answered by `status` without a look at its messages; at debug every one", 1, "status"),
    "message_refused": LogEvent(
        "a handshake, subscribe, publish or WAMP request was denied: `channel`, `error`", 1, "verb"
    ),
    "connection_cut": LogEvent("closed without an answer: `reason`", 1, "reason"),
    "out_of_files": LogEvent("a connection could not be accepted: raise `LimitNOFILE`; it waits, and is tried again"),
    "tls_failed": LogEvent("a peer and the server found no common TLS: OpenSSL's `reason`", 1, "reason"),
    "limit_reached": LogEvent("a `limit` has said no so many `times` in the last second or so", 1, "limit"),
    "token_refused": LogEvent("a token proves nothing, or no longer: `reason`, `detail`", 1, "reason"),
    "keys": LogEvent("a file of keys has changed, or cannot be used any more: `what`", LIFE),
    "suppressed": LogEvent("`count` lines of the event `of` were left out in the last second or more", LIFE),
    "signal": LogEvent("a signal came: its `name`, and what is done about it", LIFE),
    "reloaded": LogEvent("SIGHUP: `what` was read again", LIFE),
    "reload_failed": LogEvent("SIGHUP: `what` cannot be used and stays as it was: `reason`", LIFE),
    "draining": LogEvent("the server begins to leave: `holds` is how many polls it will answer", LIFE),
    "drain_progress": LogEvent("once a second: `holds` that are still to be answered", LIFE),
    "drained": LogEvent("all held polls are answered", LIFE),
    "stopped": LogEvent(
        "the last line: `undelivered_events` were not recorded, and are lost; `is_cut_short` by a second signal", LIFE
    ),
    "stalled": LogEvent("the process stood still for `seconds`; no session was ended for it", 1),
    "fault": LogEvent("an error in Halley or in code that it loaded: `what`, with its trace", 1, "what"),
}
