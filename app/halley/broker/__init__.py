"""The core: sessions, topics and subscriptions, and the delivery of events to subscribers.

It uses the standard library only. It never awaits and never reads a clock: every function that depends on time takes
`now` (monotonic seconds) as an argument. So each call is atomic and needs no lock.
"""
