"""What holds for every test: how hard Hypothesis tries, and that Ctrl-C means something.

`HALLEY_HYPOTHESIS=thorough` looks long and at random (at night); the default is short and the same on every run, so
that no change is blamed for a fault it did not make.
"""

import os
import signal

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "default",
    derandomize=True,
    database=None,
    deadline=None,  # speed is never asserted
    max_examples=100,
    stateful_step_count=50,
    report_multiple_bugs=False,  # the shortest sequence of one fault says more than six at once
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough",
    parent=settings.get_profile("default"),
    derandomize=False,
    print_blob=True,
    max_examples=1_000,
    stateful_step_count=100,
)
settings.load_profile(os.environ.get("HALLEY_HYPOTHESIS", "default"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script has run this in its background (POSIX sh, 2.11)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests start would ignore it too
