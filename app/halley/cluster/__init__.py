"""Several servers that are one: one order of events, one history, on a stream of NATS JetStream.

    frames.py          a frame: the events of one turn of a node's event loop, as one message of NATS
    bounds.py          the bounds of what comes from another node, which are those of clients
    applied.py         what every node makes of the frames in the stream's order: which events count, and their offsets
    broker_log.py      the log that the broker sees: it applies what comes from the stream
    sender.py          this node's events in frames, until they come back
    stream_reader.py   each message of the stream once, and in order
    arrivals.py        the events of frames that count, as one node has them
    store.py           where they go when they have their offsets, and from there to the broker
    direct.py          events that are not recorded, past the stream
    availability.py    whether the stream takes events, and whether this node can go on with it
    stream.py          the stream's life: how it is made, what leaves it, and whether a node can go on with it
    membership.py      what a node must know before it opens its folder: whose log the stream is, and if the two fit
    continuity.py      whether the stream has all that was acknowledged, before a node goes on with it
    copying.py         taking over the state and the rows of keepers; so a folder is filled before its node serves
    missed.py          what a running node has missed of the stream, from a keeper
    repair.py          what is damaged or lost in the folder of a running keeper, from another one
    recover.py         making the stream again from a folder
    erasure.py         erasing events from all folders and from the stream
    members.py         the nodes that are alive, and what each says of itself
    keeper.py          a node with a data folder: what it answers to the others
    front.py           a node without one: what it has instead
    keeper_client.py   asking keepers
    pages.py           a query and its page, as a front and a keeper send them
    requests.py        a request between nodes, whose answer may be large
    exchange.py        news and questions between nodes, past the stream
    tasks.py           the tasks that a part of a node has under way
    nt4_lease.py       which node is the home of NetworkTables, by a lease; and its persistent topics
    values.py          the values of NetworkTables at the home and at all other nodes
    consistency.py     what should be the same at all nodes, and where it is not
    status.py          how far each node is and what differs among them, as the console shows it

A stream (`halley.nats`) orders the frames of all nodes and keeps them until the keepers have them. Each node applies
them by the same pure function. A keeper writes the events that count into its own data folder, at the same offsets as
all other keepers; they are delivered and acknowledged there when they are stored in the stream and on its disk. A
front delivers the same events when they are in the stream or, where a keeper settles them, on a keeper's disk; it
reads older ones from a keeper.
"""
