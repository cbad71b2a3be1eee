"""A client of NATS for nodes of a cluster: messages, requests and JetStream's streams, on one connection.

    wire.py             the protocol on one connection
    client.py           a connection that is renewed by itself: messages and requests
    credentials.py      what proves who the node is, and who the servers are: files, read for each connection
    subscriptions.py    which handler gets a message
    jetstream.py        the stream, and what else is asked of JetStream
    stream_position.py  where in the stream a message is

The reasons for a client of our own are order and back-pressure, not processor time, which would be some percent of a
core: handlers run in the read callback, in the order of arrival, without a task or a queue for each subscription, and
NATS' flow control sees at once when a node falls behind.
"""
