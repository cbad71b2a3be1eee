"""Compressed messages of a WebSocket in Chromium, which offers them by itself."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ECHO = """
([url, sent]) => new Promise((resolve, reject) => {
  const socket = new WebSocket(url, "wamp.2.json");
  const say = (...message) => socket.send(JSON.stringify(message));
  const roles = { publisher: {}, subscriber: {} };
  socket.onopen = () => say(1, "realm1", { roles });
  socket.onclose = ({ code }) => reject(new Error(`closed: ${code}`));
  socket.onmessage = ({ data }) => {
    const [code, ...rest] = JSON.parse(data);
    if (code === 2) say(32, 1, {}, "com.example.echo");
    if (code === 33) say(16, 2, { exclude_me: false }, "com.example.echo", [sent]);
    if (code === 36) resolve([socket.extensions, rest[3][0]]);
  };
})
"""


@pytest.mark.parametrize(
    ("server", "extensions"), [("permessage_deflate = true\n", "permessage-deflate"), ("", "")], indirect=["server"]
)
async def test_a_page_publishes_and_receives(profile, server, extensions):
    """Its message is inflated, and the event that comes back is what it has sent."""
    sent = ["an event of some length"] * 500
    page = await profile.open(f"{server.url}/jsonp.html")
    agreed, heard = await page.evaluate(ECHO, [f"{server.url.replace('http', 'ws')}/wamp", sent])
    assert heard == sent
    assert agreed.split(";")[0] == extensions
