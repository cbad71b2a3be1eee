"""Several servers that are one: one order of events, one history, on a stream of NATS JetStream.

    frames.py      a frame: the events of one turn of a node's event loop, as one message of NATS
    applied.py     what every node makes of the frames in the stream's order: which events count, and their offsets
    broker_log.py  the log that the broker sees: its events leave in frames, and come back with all others
    nats.py        the only file that imports the NATS client: the connection, the stream, and a consumer of it
    membership.py  what a node must know before it opens its folder: whose log the stream is, and if the two fit
    members.py     the nodes that are alive, with their facts
    exchange.py    news and questions between them, past the stream
    alike.py       what should be alike at all nodes, and where it is not
    standing.py    where every node stands, as the console shows it

A stream orders the frames of all nodes and keeps them for a day. Each node applies them by the same pure function, and
writes the events that count into its own data folder, at the same offsets as all other nodes. An event is delivered
and acknowledged when it is stored in the stream and on the node's own disk.
"""
