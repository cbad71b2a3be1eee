"""Settings of a cluster: several servers with one order of events and one history, on NATS JetStream."""

from dataclasses import dataclass
from typing import Literal

from halley.settings.knob import knob


@dataclass(frozen=True, slots=True)
class Cluster:
    """The NATS servers and the node's place in the cluster; without `urls` there is none."""

    urls: tuple[str, ...] = knob([], why="NATS servers, such as nats://a:4222 or tls://b:4222; empty: no cluster")
    node: str = knob("", why="this node's name; every node of a space has another")
    space: str = knob("halley", why="servers with the same one are one cluster; also the name of the stream")
    settled_by: Literal["stream", "keeper"] = knob(
        "stream",
        why="when a durable publish is acknowledged: once most NATS servers have it (stream), or once a keeper's disk "
        "has it (keeper)",
    )
    front: bool = knob(
        default=False,
        why="this node keeps no history in its data folder; it asks those that do, of which a cluster needs one",
    )
    stream_bytes: int = knob(
        4_294_967_296,
        unit="bytes",
        low=1_048_576,
        why="the stream's size; when it is full of what no keeper has saved, all durable publishes get 503",
    )
    stream_keep_s: float = knob(
        300.0,
        unit="s",
        low=1,
        why="what is younger stays in the stream although all keepers have saved it, for nodes that were cut off",
    )
    keeper_away_s: float = knob(
        3_600.0,
        unit="s",
        low=1,
        why="how long the stream keeps for a keeper that is away what another one has saved; then it copies that",
    )
    join_s: float = knob(10.0, unit="s", low=0.1, why="a server that cannot join the cluster by then does not start")
    lost_s: float = knob(
        10.0, unit="s", low=1, why="without NATS, after which /health/ready fails, so that balancers choose other nodes"
    )
    listen: str = knob(
        "127.0.0.1:0",
        why="host:port at which other nodes pass on requests, with plain HTTP; port 0: a free one; this default is for "
        "nodes on one machine",
    )
    advertise: str = knob("", why="URL by which other nodes reach cluster.listen; empty: its own address and port")
    relayed: int = knob(
        2_000,
        unit="requests",
        low=1,
        why="passed on to other nodes at the same time, mostly held polls, an equal share to each; then 503",
    )
    erase_s: float = knob(
        600.0, unit="s", low=1, why="for each node to erase; the answer to a purge names those that have not then"
    )
    nt4_lease_s: float = knob(
        5.0,
        unit="s",
        low=1,
        why="after which another node becomes the home of NetworkTables, if the home is silent; that one stops before",
    )
    user: str = knob("", why="of the NATS servers; empty: none")
    password_file: str = knob("", why="file with the user's password; a process list would show a password")
    nkey_file: str = knob("", why="file with the seed of an nkey, instead of a user and a password; empty: none")
    creds_file: str = knob(
        "", why="credentials file (.creds) with a user's JWT and the seed of its nkey, as accounts have it; empty: none"
    )
    token_file: str = knob("", why="file with a token, instead of a user; empty: none")
    tls_ca: str = knob("", why="PEM file of the authority of the NATS servers' certificates; empty: the system's")
    tls_cert: str = knob("", why="PEM file of the node's own certificate; empty: none")
    tls_key: str = knob("", why="its private key; empty: it is in the certificate's file")
