"""A client of NATS for nodes of a cluster: messages, requests and JetStream's streams, on one connection.

`wire.py` has the protocol, `subscriptions.py` who gets a message, `proof.py` who the node is, `client.py` the
connection that is renewed by itself, `jetstream.py` what is asked of the stream, and `places.py` where in it a message
is. A node reads all that other nodes publish, so what a message costs before its handler runs is paid for each by every
node: handlers are called while the bytes are read, with no task between.
"""
