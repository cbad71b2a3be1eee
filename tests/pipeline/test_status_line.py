"""The status of jobs where standard error is not a terminal: lines for a log."""

from halley.cli.terminal import StatusLine


def test_in_a_log_there_is_a_line_every_ten_seconds_and_one_at_the_end(capfd):
    """In a log the first status is written immediately, then one every ten seconds, and the last at the end."""
    now = [100.0]
    line = StatusLine(lambda: now[0])
    line.show([])
    for second in range(25):
        now[0] = 100.0 + second
        line.show([f"ingest at {second}", "rollup at 1"])
    line.finish()
    line.finish()
    assert capfd.readouterr().err.splitlines() == [
        f"halley: ingest at {second}; rollup at 1" for second in (0, 10, 20, 24)
    ]
