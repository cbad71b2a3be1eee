"""Every event that has a line in the log, with its meaning. `deploy/README.md` shows this table."""

from __future__ import annotations

from typing import NamedTuple


class LogEvent(NamedTuple):
    """The meaning of a line, and how many lines of a kind are written in one second; further ones are counted.

    `kind` is the field that distinguishes kinds of the event, so that a flood of one does not hide another. It must
    take few values, none of them chosen by a peer.
    """

    meaning: str
    per_s: int = 1
    kind: str = ""


LIFE = 1_000_000  # clients cannot cause these often
SESSIONS = 20

EVENTS: dict[str, LogEvent] = {
    "started": LogEvent(
        "versions, whether the program is `compiled`, the limit of `open_files`, and the source of each of the "
        "`settings` that are not defaults",
        LIFE,
    ),
    "listening": LogEvent("a listener serves: `url`", LIFE),
    "not_listening": LogEvent("the clients' listener takes no further connections: `url`", LIFE),
    "history_opened": LogEvent(
        "the history is open: its `folder`, `log_id`, `first` and `next` offset, and size in `bytes`", LIFE
    ),
    "history_damaged": LogEvent("offsets `first` to `last` are damaged or lost: the `file`, and `what` is wrong", 100),
    "history_unavailable": LogEvent(
        "the log cannot be written, and durable publishes are refused: `reason` is disk, free_bytes or moved; the last "
        "means that its files were deleted or moved. In a cluster it is also nats_away, auth (NATS does not let the "
        "node in), stream_full, no_leader (too few NATS servers run to store any), cluster_healing, cluster_diverged, "
        "or at a front no_keeper: none is there that can write",
        LIFE,
    ),
    "history_recovered": LogEvent("the log can be written again", LIFE),
    "history_unreadable": LogEvent(
        "the history could not be read, since a resource such as a file descriptor is short: `reason`. Its reader can "
        "try again",
        10,
    ),
    "cluster_joined": LogEvent(
        "the server is a node of a cluster: its `space`, `node` and `settled_by`, whether it `keeps` the history, and "
        "the `sequence` in the stream from which it goes on",
        LIFE,
    ),
    "cluster_copying": LogEvent(
        "the stream does not have all that the node lacks: it copies the events from `first` to `last` of the node "
        "`keeper`, before it serves",
        LIFE,
    ),
    "cluster_healing": LogEvent(
        "the node gets the events from `first` to `last` from the node `keeper`: it has missed them, or they are "
        "damaged or lost in its folder. If it cannot, `waits` says why, and it tries again; a `last` of 0 is unknown",
        100,
    ),
    "cluster_healed": LogEvent("the node has got the events from `first` to `last` that it lacked", 100),
    "cluster_partial": LogEvent("`what` a cluster does not do yet", LIFE),
    "cluster_member": LogEvent("another `node` of the cluster is there", LIFE),
    "cluster_member_gone": LogEvent("another `node` has left, or has been silent for some seconds", LIFE),
    "cluster_name_taken": LogEvent(
        "another `node` of the cluster has this one's name, or one with the same id, and goes on: this one drains and "
        "ends with exit code 2",
        LIFE,
    ),
    "cluster_unreachable": LogEvent(
        "another `node` is alive, but requests of its sessions cannot be passed on to it: `reason`", 1, "reason"
    ),
    "nt4_home": LogEvent("this node of a cluster is the home of NetworkTables from now on", LIFE),
    "nt4_standby": LogEvent(
        "NetworkTables is not served at this node, but at the node `home`; empty: at none that it knows of", LIFE
    ),
    "nt4_port": LogEvent(
        "the home of NetworkTables cannot listen at `nt4.port` for the `reason`, and tries again each second", LIFE
    ),
    "nt4_lease": LogEvent("NATS does not store who the home of NetworkTables is: `error`; the node tries again"),
    "cluster_away": LogEvent(
        "the connection to NATS is lost, or an attempt to connect again has failed for a new `reason`: what the "
        "`server` has said, or what is wrong with a file of credentials",
        LIFE,
    ),
    "cluster_back": LogEvent("the connection to NATS is there again", LIFE),
    "cluster_dropped": LogEvent(
        "a message to or from other nodes was dropped, on the `subject`: `why`, and its `bytes`", 1, "why"
    ),
    "cluster_consumer": LogEvent("JetStream does not deliver the stream now (`error`); the node asks again", LIFE),
    "cluster_diverged": LogEvent(
        "the node cannot go on with the stream: `why`; it takes no durable publishes any more", LIFE
    ),
    "cluster_stream_changed": LogEvent(
        "the stream was made with other settings, and has been changed: what it had `before`, and has `now`", LIFE
    ),
    "cluster_stream_filling": LogEvent(
        "the stream has 80 % of its bytes: `bytes` of `max_bytes`; no keeper that is away is waited for any longer",
        LIFE,
    ),
    "cluster_not_trimmed": LogEvent(
        "JetStream has not deleted what all keepers have saved of the stream (`error`); the node tries again"
    ),
    "cluster_keeper_left_behind": LogEvent(
        "frames leave the stream that a keeper has not saved: the `node`, the last message that it has `saved` (null: "
        "unknown), and for how long it has been away (`away_s`). When it is back it copies from another keeper; one "
        "that is gone for good is struck off by `halley cluster forget`",
        LIFE,
    ),
    "cluster_no_keeper": LogEvent(
        "no keeper is there that can write: this front goes on until the stream has 80 % of its bytes, or not at all "
        "where a keeper settles events",
        LIFE,
    ),
    "cluster_differs": LogEvent(
        "`what` differs among the nodes and should not, as groups of `nodes` that are alike: settings, or the version, "
        "or `stream`: nodes have made something else of the same part of the stream, which is a fault of Halley. One "
        "that differs from most others stops (`cluster_diverged`): start it again with an empty folder",
        LIFE,
    ),
    "process_ended": LogEvent(
        "of `halley cluster`: the program `name` has ended with `code` (negative: a signal), and is started again in "
        "`again_in_s`",
        LIFE,
    ),
    "consumer_overtaken": LogEvent(
        "retention deleted events that a `consumer` had not read: it was at `offset`, the log now begins at `first`",
        100,
    ),
    "consumer_ignored": LogEvent("a `file` in the folder of consumers is not a valid consumer: `reason`", 10),
    "persistent_topics_damaged": LogEvent("some of NetworkTables' persistent topics cannot be restored: `what`", 20),
    "session_opened": LogEvent(
        "a session was opened: its protocol, `authid`, `role`, `address` and `user_agent`", SESSIONS
    ),
    "session_closed": LogEvent(
        "a session has ended: `reason` is disconnected, expired, dismissed, inactive, slow_consumer, token_expired; "
        "fault where an error in Halley has ended it; drained where a program starts its server again; "
        "for WAMP also goodbye, connection_lost, killed, protocol_violation, aborted or drained; "
        "for NetworkTables connection_lost, binary_decode_error, drained, or moved: another node is its home",
        SESSIONS,
        "reason",
    ),
    "request_refused": LogEvent(
        "a request was answered with `status` without reading its messages; at level debug every one is logged",
        1,
        "status",
    ),
    "message_refused": LogEvent("a Bayeux message or WAMP request was denied: `channel`, `error`", 1, "verb"),
    "connection_cut": LogEvent("a connection was aborted without a complete response: `reason`", 1, "reason"),
    "out_of_files": LogEvent(
        "the process can open no more files, so new connections are not accepted: raise `LimitNOFILE`"
    ),
    "tls_failed": LogEvent("a TLS handshake failed: OpenSSL's `reason`", 1, "reason"),
    "limit_reached": LogEvent("a `limit` was reached; `times`: how often in the last second or so", 1, "limit"),
    "roles_unproved": LogEvent(
        "access rules name `roles` that no client can have, as no token, user or JSON Web Token gives them: perhaps it "
        "is the wrong settings file. `reads_tokens` is false where the server reads no tokens at all",
        LIFE,
    ),
    "token_refused": LogEvent("a token is invalid or has expired: `reason`, `detail`", 1, "reason"),
    "keys": LogEvent("a file of keys has changed, or can no longer be used: `what`", LIFE),
    "suppressed": LogEvent("`count` lines of the event `of` were left out in the last second or more", LIFE),
    "signal": LogEvent("a signal was received: its `name`, and what the server does `then`", LIFE),
    "reloaded": LogEvent(
        "SIGHUP: `what` was read again; of the settings access rules, tokens and users count at once. The credentials "
        "of a node count when it connects to NATS again: if it waits for that, at once",
        LIFE,
    ),
    "reload_failed": LogEvent(
        "SIGHUP: `what` cannot be used, so the old one is kept: `reason`, or all `problems` of the settings", LIFE
    ),
    "restart_needed": LogEvent("SIGHUP: these `settings` have changed too, and count from the next start on", LIFE),
    "draining": LogEvent("the server begins to drain: `holds` is the number of held polls to answer", LIFE),
    "drain_progress": LogEvent("once a second while draining: the number of `holds` still to answer", LIFE),
    "drained": LogEvent("all held polls are answered", LIFE),
    "stopped": LogEvent(
        "the last line: how many `undelivered_events` are lost; `is_cut_short` if a second signal ended the drain", LIFE
    ),
    "stalled": LogEvent("the process stood still for `seconds`; no session was ended because of it", 1),
    "fault": LogEvent("an error in Halley or in code that it loaded: `what` failed, with the traceback", 1, "what"),
}
