"""Scripts of other sites in Chromium, which sends Sec-Fetch-Site and Referer as real pages make it do (S46)."""

from __future__ import annotations

import httpx
import pytest
from browser.conftest import RestartableServer
from support.folder_server import files
from support.messages import HANDSHAKE, connect, publish, subscribe

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PAGE = """<!doctype html>
<link rel="icon" href="data:," />
<script>
  function ask(url, messages, attributes) {
    return new Promise((resolve) => {
      window.called = resolve;
      const query = new URLSearchParams({ jsonp: "called", message: JSON.stringify(messages) });
      const script = Object.assign(document.createElement("script"), attributes, { src: `${url}?${query}` });
      script.onerror = () => resolve("refused");
      document.head.append(script);
    });
  }
</script>
"""
PLAIN, HIDING, WHOLE_URL = {}, {"referrerPolicy": "no-referrer"}, {"referrerPolicy": "unsafe-url"}
BY_CORS = {"crossOrigin": "use-credentials"}


@pytest.fixture
def pages_port(tmp_path):
    """The port of a server with the page; it is the same for all names that end in `.example`."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "page.html").write_text(PAGE)
    with files(folder) as origin:
        yield int(origin.rpartition(":")[2])


async def ask(page, url, attributes, *messages):
    """Load one script into a page; return the messages of the reply, or "refused"."""
    return await page.evaluate("(given) => ask(...given)", [url, messages, attributes])


async def heard(page, url, attributes):
    """Whether a handshake by a script of the page succeeds."""
    replies = await ask(page, url, attributes, HANDSHAKE)
    return replies != "refused" and replies[0]["successful"]


@pytest.mark.parametrize("attributes", [PLAIN, HIDING, WHOLE_URL, BY_CORS], ids=["plain", "hiding", "whole", "cors"])
@pytest.mark.parametrize("site", ["http://evil.example", "http://127.0.0.1.evil.example"])
async def test_a_page_of_another_site_neither_reads_nor_publishes(profile, server, pages_port, site, attributes):
    """S46: this is so for every Referer that a page can make its browser send, and with a clientId that it knows."""
    page = await profile.open(f"{site}:{pages_port}/page.html")
    async with httpx.AsyncClient(verify=False) as client:
        client_id = (await client.post(server.bayeux, json=HANDSHAKE)).json()[0]["clientId"]
        for messages in (
            [HANDSHAKE],
            [HANDSHAKE, publish("/robot/cmd", "go")],
            [subscribe(client_id, "/**")],
            [publish("/robot/cmd", "go", clientId=client_id)],
            [connect(client_id, connectionType="callback-polling")],
        ):
            assert await ask(page, server.bayeux, attributes, *messages) == "refused"
        await server.post({"channel": "/robot/cmd", "data": "stop"})
        events = (await client.get(f"{server.url}/history/robot/cmd")).json()["events"]
    assert [event["data"] for event in events] == ["stop"]
    profile.complaints.clear()  # they are about the scripts that were refused


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_page_on_another_port_of_this_machine_is_served(profile, server, pages_port, name):
    """S46: a loopback page on a loopback listener; one that hides its Referer can be any, unless CORS shows it."""
    page = await profile.open(f"http://{name}:{pages_port}/page.html")
    assert await heard(page, server.bayeux, PLAIN)
    assert await heard(page, server.bayeux, BY_CORS | HIDING)
    assert not await heard(page, server.bayeux, HIDING)
    profile.complaints.clear()  # they are about the script that was refused


async def test_a_page_on_another_port_of_the_same_name_must_be_listed(profile, pages_port, tmp_path):
    """S46: the same name with another port is another origin, as for a POST; so is another name."""
    listed = f'hosts = ["halley.example"]\n[cors]\norigins = ["http://app.example:{pages_port}"]\n'
    (tmp_path / "named").mkdir()
    named = RestartableServer(tmp_path / "named", listed)
    await named.start()
    try:
        url = named.bayeux.replace("127.0.0.1", "halley.example")
        for name, expected in (("halley.example", False), ("app.example", True), ("other.example", False)):
            page = await profile.open(f"http://{name}:{pages_port}/page.html")
            assert await heard(page, url, PLAIN) is expected, name
        profile.complaints.clear()  # they are about the scripts that were refused
    finally:
        await named.close()
