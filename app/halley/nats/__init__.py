"""A client of NATS for nodes of a cluster: messages, requests and JetStream's streams, on one connection.

`wire.py` has the protocol, `subscriptions.py` who gets a message, `proof.py` who the node is, `client.py` the
connection that is renewed by itself, `jetstream.py` what is asked of the stream, and `places.py` where in it a message
is. Handlers run in the read callback, without a task or a queue for each message: so they are called in the order of
arrival, and NATS' flow control sees at once when a node falls behind.
"""
