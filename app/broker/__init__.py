"""The core: sessions, topics, and who hears what.

Standard library only. It never awaits and never looks at a clock: `now` (monotonic seconds) is an argument of all
that depends on time, so each call is atomic and needs no lock.
"""
