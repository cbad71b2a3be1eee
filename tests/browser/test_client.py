"""`bayeux.js`, the console's client, in Chromium, by polls: what it sends, and how it handles replies and advice."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.wire import DEADLINE_S

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

CLIENT = """
    const { Bayeux } = await import("/client/bayeux.js");
    const bayeux = new Bayeux("/bayeux", { transport: "long-polling" });
    const heard = [];
    bayeux.addEventListener("message", ({ detail }) => heard.push(detail));
    const until = (holds) => new Promise((resolve, reject) => {
      const look = () => holds() && resolve();
      for (const type of ["change", "message"]) bayeux.addEventListener(type, look);
      setTimeout(() => reject(new Error(`still ${bayeux.state}`)), DEADLINE_MS);
      look();
    });
    const becomes = (state) => until(() => bayeux.state === state);
"""


async def run(page, script):
    """Run a script in a page and return its result; it has a client `bayeux` and the received events `heard`."""
    return await page.evaluate(f"async () => {{ const DEADLINE_MS = {DEADLINE_S * 1000}; {CLIENT} {script} }}")


async def open_blank(profile, server):
    """Open an empty page of the server's origin."""
    page = '<!doctype html><link rel="icon" href="data:,">'
    await profile.context.route("**/blank", lambda route: route.fulfill(body=page, content_type="text/html"))
    return await profile.open(f"{server.url}/blank")


def sent(profile):
    """Return a list to which the messages of each later request are added."""
    requests = []
    profile.context.on(
        "request", lambda request: requests.append(request.post_data_json) if request.method == "POST" else None
    )
    return requests


async def test_what_is_sent_in_one_tick_travels_in_one_request(profile, server):
    """Three publishes in one turn of the event loop share one request, and each gets its own reply."""
    page = await open_blank(profile, server)
    requests = sent(profile)
    replies = await run(
        page,
        """
        bayeux.connect();
        await becomes("connected");
        return Promise.all([1, 2, 3].map((number) => bayeux.publish("/a", number)));
        """,
    )
    assert [reply["successful"] for reply in replies] == [True, True, True]
    publishes = [request for request in requests if request[0]["channel"] == "/a"]
    assert [[message["data"] for message in request] for request in publishes] == [[1, 2, 3]]


async def test_it_publishes_while_its_connect_is_held(profile, server):
    """Bayeux 1.0, 5: it publishes in a second request; the held connect delivers the events, in order."""
    page = await open_blank(profile, server)
    heard = await run(
        page,
        """
        bayeux.connect();
        bayeux.subscribe("/a/*");
        await until(() => bayeux.isGranted("/a/*"));
        await becomes("connected");
        for (const number of [1, 2, 3]) await bayeux.publish("/a/b", number);
        await until(() => heard.length === 3);
        await bayeux.disconnect();
        return heard.map(({ channel, data }) => [channel, data]);
        """,
    )
    assert heard == [["/a/b", 1], ["/a/b", 2], ["/a/b", 3]]


async def test_a_refused_subscription_is_told_and_forgotten(profile, server):
    """A68: the event `refused` has the server's error text and reply, and the subscription is no longer listed."""
    page = await open_blank(profile, server)
    error = await run(
        page,
        """
        bayeux.connect();
        bayeux.subscribe("/meta/x");
        const { detail } = await new Promise((resolve) => bayeux.addEventListener("refused", resolve));
        return { message: detail.error.message, reply: detail.error.reply, left: bayeux.subscriptions };
        """,
    )
    assert error["left"] == []
    assert error["message"] == "403:denied_by_security_policy:subscribe_denied"
    assert error["reply"]["subscription"] == "/meta/x"


@pytest.mark.parametrize("refused", ["/meta/handshake", "/meta/connect"])
async def test_the_advice_none_ends_it(profile, server, refused):
    """A38: after the advice `reconnect: none` it sends neither a connect nor a handshake, and `error` is the reason."""
    page = await open_blank(profile, server)
    requests = sent(profile)

    async def refuse(route):
        message = route.request.post_data_json[0]
        if message["channel"] != refused:
            await route.continue_()
            return
        reply = {"id": message["id"], "channel": refused, "successful": False}
        reply |= {"error": "403::denied", "advice": {"reconnect": "none"}}
        await route.fulfill(json=[reply])

    await profile.context.route("**/bayeux", refuse)
    state = await run(
        page,
        """
        bayeux.connect();
        await becomes("connecting");
        await becomes("disconnected");
        return [bayeux.state, bayeux.error.message, bayeux.session];
        """,
    )
    assert state == ["disconnected", "403::denied", None]
    assert requests[-1][0]["channel"] == refused
    assert [request[0]["channel"] for request in requests].count(refused) == 1


async def test_a_forgotten_session_is_replaced_at_once(profile, server):
    """A38: after the advice `reconnect: handshake` it makes a new session and subscribes again, without a pause."""
    page = await open_blank(profile, server)
    requests = sent(profile)
    forgets = [True]

    async def forget(route):
        message = route.request.post_data_json[0]
        if message["channel"] != "/meta/connect" or "advice" in message or not forgets:
            await route.continue_()
            return
        forgets.clear()
        reply = {"id": message["id"], "channel": "/meta/connect", "successful": False}
        reply |= {"error": "402::session_unknown", "advice": {"reconnect": "handshake", "interval": 0}}
        await route.fulfill(json=[reply])

    await profile.context.route("**/bayeux", forget)
    states = await run(
        page,
        """
        const states = [];
        bayeux.subscribe("/a");
        bayeux.addEventListener("change", () => states.at(-1) === bayeux.state || states.push(bayeux.state));
        bayeux.connect();
        await until(() => states.length === 4 && bayeux.isGranted("/a"));
        return states;
        """,
    )
    assert states == ["connecting", "connected", "reconnecting", "connected"]
    flat = [message["channel"] for request in requests for message in request]
    assert flat.count("/meta/handshake") == 2
    assert flat.count("/meta/subscribe") == 2


async def test_a_late_goodbye_does_not_end_the_next_session(profile, server):
    """A38: `reconnect: none` in the reply to a disconnect does not affect the session that was begun meanwhile."""
    page = await open_blank(profile, server)
    goodbyes = []

    async def delay(route):
        if route.request.post_data_json[0]["channel"] == "/meta/disconnect" and not goodbyes:
            goodbyes.append(route)
        else:
            await route.continue_()

    await profile.context.route("**/bayeux", delay)
    await run(
        page,
        """
        bayeux.connect();
        await becomes("connected");
        window.goodbye = bayeux.disconnect();
        bayeux.connect();
        await becomes("connected");
        window.bayeux = bayeux;
        """,
    )
    message = goodbyes[0].request.post_data_json[0]
    reply = {"id": message["id"], "channel": "/meta/disconnect", "successful": True, "advice": {"reconnect": "none"}}
    await goodbyes[0].fulfill(json=[reply])
    seen = await page.evaluate(
        "async () => { await goodbye; return [bayeux.advice.reconnect, (await bayeux.publish('/a', 1)).successful]; }"
    )
    assert seen == ["retry", True]


async def test_an_http_error_is_tried_again_after_a_pause(profile, server):
    """A request with status 503 is repeated after a pause; meanwhile `retryAt` is the time of the next attempt."""
    profile.expected = "503"
    page = await open_blank(profile, server)
    refusals = [503]

    async def refuse(route):
        if refusals:
            await route.fulfill(status=refusals.pop())
        else:
            await route.continue_()

    await profile.context.route("**/bayeux", refuse)
    seen = await run(
        page,
        """
        bayeux.connect();
        await becomes("reconnecting");
        const seen = [bayeux.error.message, bayeux.retryAt - Date.now() > 100];
        await becomes("connected");
        return [...seen, bayeux.error];
        """,
    )
    assert seen == ["the server responded with HTTP 503", True, None]


async def test_a_foreign_reply_in_an_event_is_no_reply(profile, server):
    """A49: an event with the fields `advice` and `successful` is delivered as an event, and its advice is ignored."""
    page = await open_blank(profile, server)
    forged = {"channel": "/a", "data": 1, "id": "1", "successful": False, "advice": {"reconnect": "none"}}
    forgeries = [forged]

    async def forge(route):
        message = route.request.post_data_json[0]
        response = await route.fetch()
        messages = await response.json()
        if message["channel"] == "/meta/connect" and forgeries:
            messages.append(forgeries.pop())
        await route.fulfill(body=json.dumps(messages), headers={"content-type": "application/json"})

    await profile.context.route("**/bayeux", forge)
    seen = await run(
        page,
        """
        bayeux.connect();
        await becomes("connected");
        return [heard.map(({ data }) => data), bayeux.advice.reconnect];
        """,
    )
    assert seen == [[1], "retry"]
    await profile.context.unroute_all(behavior="ignoreErrors")


def rules(*channels):
    """Return a configuration in which everyone may publish everything, and subscribe to these channels."""
    rule = '[[access]]\nrole = "*"\nverb = "{}"\npattern = "{}"\n'
    return rule.format("publish", "/**") + "".join(rule.format("subscribe", channel) for channel in channels)


@pytest.mark.parametrize("server", [rules("/a", "/b")], indirect=True)
async def test_a_subscription_that_the_server_has_ended_is_given_up(profile, server):
    """Rules that no longer allow it are reported as a refusal; the other subscriptions go on."""
    page = await open_blank(profile, server)
    running = asyncio.create_task(
        run(
            page,
            """
            const refused = [];
            bayeux.addEventListener("refused", ({ detail }) => refused.push([detail.channel, detail.error.message]));
            bayeux.subscribe("/a");
            bayeux.subscribe("/b");
            bayeux.connect();
            await until(() => bayeux.isGranted("/a") && bayeux.isGranted("/b"));
            document.title = "granted";
            await until(() => refused.length && !bayeux.isGranted("/a"));
            await bayeux.publish("/a", 1);
            await bayeux.publish("/b", 2);
            await until(() => heard.length);
            return [refused, heard.map(({ data }) => data)];
            """,
        )
    )
    await page.wait_for_function("document.title === 'granted'")
    await server.reload(rules("/b"))
    error = "no longer allowed: the server has ended it"
    assert await running == [[["/a", error]], [2]]
