"""NetworkTables over TLS: with a certificate `/nt/NAME` is `wss`; NetworkTables' own listener stays plain."""

from __future__ import annotations

from support import authority, nt4
from support.server import brisk, serving


async def test_a_client_by_tls_and_a_plain_one_share_topics(tmp_path):
    """NA4: the main listener uses wss; the other one needs no certificate."""
    nt4_settings = {"enabled": True, "port": 0, "ping_s": 5, "pong_s": 10}
    settings = brisk(tls=authority.settings(), nt4=nt4_settings, data_dir=str(tmp_path))
    async with (
        serving(settings) as served,
        await nt4.connect(served.url, "safe", ssl=authority.context()) as safe,
        await nt4.connect(f"http://127.0.0.1:{served.nt4_port}", "plain") as plain,
    ):
        await plain.subscribe("/x", all=True)
        await safe.publish("/x", 1)
        for number in range(3):
            await safe.put(1, number + 1, float(number))
        assert [(await plain.value("/x")).value for _ in range(3)] == [0.0, 1.0, 2.0]
