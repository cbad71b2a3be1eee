"""Requests that users type with curl, and their replies."""

from __future__ import annotations

import json

import pytest
from clients.curl import curl

pytestmark = pytest.mark.asyncio(loop_scope="session")

HANDSHAKE = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["callback-polling"]}
SAID = {"channel": "/room", "data": "Grüße & + %"}


@pytest.mark.parametrize("option", ["--data", "--json", "--data-urlencode"])
@pytest.mark.parametrize("messages", [SAID, [SAID], [SAID, SAID]], ids=["object", "array", "two"])
async def test_each_way_to_send_messages(option, messages, site):
    """A1, A56, A57: messages are accepted as JSON under curl's form type, as JSON, and in a form; object or array."""
    server = await site.serve()
    body = json.dumps(messages, ensure_ascii=False)
    form = f"message={body}" if option == "--data-urlencode" else body
    answer = await curl(f"http://127.0.0.1:{server.port}/bayeux", option, form)
    replied = {"channel": "/room", "successful": True}
    assert json.loads(answer) == [replied] * (1 if messages is SAID else len(messages))
    assert server.house.broker.published == len(json.loads(answer))


async def test_a_script(site):
    """A63, A64: with `curl --get` the reply is a script that calls the named function."""
    server = await site.serve()
    answer = await curl(
        *("--get", f"http://127.0.0.1:{server.port}/bayeux"),
        *("--data-urlencode", "jsonp=show", "--data-urlencode", f"message={json.dumps(HANDSHAKE)}"),
    )
    assert answer.startswith("/**/show([{")
    assert answer.endswith("}]);")
    (reply,) = json.loads(answer.removeprefix("/**/show(").removesuffix(");"))
    assert reply["successful"] is True
