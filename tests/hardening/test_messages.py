"""Messages that are refused in a response of 200, without affecting the rest of their request (S11, S13-S17)."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.messages import HANDSHAKE, connect, publish, subscribe, unsubscribe
from support.refusals import CANARY
from support.server import PARSED, SHORT_WAY, brisk, serving
from support.wire import post

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED)]

WITNESS = publish("/witness", "came after")


def refused(channel, error, **fields):
    return {"channel": channel, "successful": False, "error": error, **fields}


async def hears(served, wire, client_id, *data):
    """Assert that exactly these events have arrived for a session."""
    assert (await wire.post(connect(client_id, advice={"timeout": 0}))).data == list(data)


@pytest.mark.parametrize(
    "number", ["18446744073709551616", "-9223372036854775809", "1e400", "-1e400", "1" * 400, '[{"deep":[1e400]}]']
)
async def test_s11_a_number_that_not_everyone_can_carry_is_refused_alone(served, number):
    """S11: a number is never altered silently; its message is refused, the message next to it is not."""
    client_id = await served.open_session("/numbers", "/witness")
    wire = await served.wire()
    body = f'[{{"channel":"/numbers","data":{number},"id":"1"}},{json.dumps(WITNESS)}]'
    answer = await wire.request(post(body.encode()))
    assert answer.messages == [
        refused("/numbers", "400::number_out_of_range", id="1"),
        {"channel": "/witness", "successful": True},
    ]
    await hears(served, wire, client_id, "came after")


@pytest.mark.parametrize(
    "number",
    ["18446744073709551615", "-9223372036854775808", "1.7976931348623157e308", "5e-324", "1e-999", "0.1", "-0.0"],
)
async def test_s11_a_number_of_64_bits_arrives_as_it_was_sent(served, number):
    """S11: a number of 64 bits is delivered exactly as it was sent."""
    client_id = await served.open_session("/numbers")
    wire = await served.wire()
    body = f'{{"channel":"/numbers","data":[{number},"9999999999999999999 1e999"]}}'
    assert (await wire.request(post(body.encode()))).messages[0]["successful"] is True
    await hears(served, wire, client_id, [json.loads(number), "9999999999999999999 1e999"])


async def test_s11_data_over_64_kib_is_refused_and_64_kib_are_delivered(served):
    """S11: the size of data is counted in bytes of JSON."""
    client_id = await served.open_session("/large")
    wire = await served.wire()
    fits, too_much = "x" * (65_536 - 2), "ä" * 32_768
    body = json.dumps([publish("/large", too_much), publish("/large", fits)], ensure_ascii=False)
    answer = await wire.request(post(body.encode()))
    assert answer.messages == [refused("/large", "413::data_too_large"), {"channel": "/large", "successful": True}]
    await hears(served, wire, client_id, fits)


async def test_s13_a_message_with_a_foreign_client_id_is_refused_alone(served):
    """S13, A54: a message for another session is refused; the others are processed, the victim is not affected."""
    victim = await served.open_session("/victim")
    mine = await served.open_session("/mine")
    wire = await served.wire()
    answer = await wire.post(
        publish("/mine", 1, clientId=mine, id="1"),
        {"channel": "/meta/disconnect", "clientId": victim, "id": "2"},
        subscribe(victim, "/mine", id="3"),
        publish("/victim", CANARY, clientId=victim, id="4"),
        publish("/mine", 2, clientId=mine, id="5"),
    )
    assert answer.replies == [
        {"id": "1", "channel": "/mine", "successful": True},
        refused("/meta/disconnect", "402::session_unknown", id="2"),
        refused("/meta/subscribe", "402::session_unknown", id="3", subscription="/mine"),
        refused("/victim", "402::session_unknown", id="4"),
        {"id": "5", "channel": "/mine", "successful": True},
    ]
    assert answer.data == [1, 2]
    assert served.halley.session(victim).subscriptions == ["/victim"]
    await hears(served, wire, victim)


@pytest.mark.parametrize(
    ("channel", "error"),
    [
        ("/meta/subscribe/x", "403:denied_by_security_policy:publish_denied"),
        ("/meta/Subscribe", "403:denied_by_security_policy:publish_denied"),
        ("/META/subscribe", None),
        ("/meta//subscribe", "405::channel_invalid"),
        ("/meta/subscribe/", "405::channel_invalid"),
        (" /meta/subscribe", "405::channel_invalid"),
        ("/meta/subscribe\u0000", "405::channel_invalid"),
        ("/meta/connect/..", "405::channel_invalid"),
        ("/meta/%73ubscribe", "405::channel_invalid"),
        ("/meta", "403:denied_by_security_policy:publish_denied"),
        ("/meta/", "405::channel_invalid"),
        ("/meta/unknown", "403:denied_by_security_policy:publish_denied"),
        ("/meta/*", "400:/meta/*:channel_is_a_wildcard"),
        ("//meta/subscribe", "405::channel_invalid"),
        ("/service/../meta/subscribe", "405::channel_invalid"),
    ],
)
async def test_s14_what_only_looks_like_a_meta_channel_does_nothing(served, channel, error):
    """S14 (CVE-2020-11020): meta channels are found by their exact names; `/META` is a plain channel like any other."""
    client_id = await served.open_session()
    wire = await served.wire()
    before = served.books()
    message = subscribe(client_id, f"/{CANARY}", channel=channel, data=CANARY)
    (reply,) = (await wire.post(message)).messages
    if error is None:
        assert reply["successful"] is True
    else:
        assert reply == refused(channel, error)
        assert served.books() == before
    assert served.halley.session(client_id).subscriptions == []


@pytest.mark.parametrize("channel", ["/a/*", "/a/**", "/*", "/**", "/service/*"])
async def test_s15_a_publish_to_a_wildcard_is_refused(served, channel):
    """S15, A22: a publish to a wildcard is refused and not delivered."""
    client_id = await served.open_session("/a/*", "/a/**", "/**")
    wire = await served.wire()
    answer = await wire.post(publish(channel, CANARY))
    assert answer.messages == [refused(channel, f"400:{channel}:channel_is_a_wildcard")]
    await hears(served, wire, client_id)


@pytest.mark.parametrize("subscription", ["/meta/connect", "/meta/*", "/meta/**", "/meta/handshake"])
async def test_s15_nobody_subscribes_to_meta_channels(served, subscription):
    """S15, A19: in an array, a meta channel refuses the other names too (A46)."""
    client_id = await served.open_session()
    wire = await served.wire()
    for wanted in ([subscription], ["/fine", subscription]):
        (reply,) = (await wire.post(subscribe(client_id, *wanted))).messages
        assert reply["error"] == "403:denied_by_security_policy:subscribe_denied"
        assert reply["subscription"] == (wanted if len(wanted) > 1 else subscription)
    assert served.halley.session(client_id).subscriptions == []


@pytest.mark.parametrize("channel", ["/halley/sessions", "/stats/10s/a", "/alerts/a", "/replay/a"])
async def test_s15_the_servers_own_channels_are_closed_to_others_where_others_can_connect(channel):
    """S15: on a listener that other machines can reach, only the server publishes to its own channels."""
    async with serving(brisk(host="0.0.0.0", open=True, bayeux={"anonymous_publish": "on"})) as served:
        client_id = await served.open_session("/stats/**", "/alerts/**", "/replay/**", "/**")
        wire = await served.wire()
        denied = "403:denied_by_security_policy:publish_denied"
        assert (await wire.post(publish(channel, 1, clientId=client_id))).messages == [refused(channel, denied)]
        assert (await wire.post(publish(channel, 1))).messages[0]["successful"] is False
        await hears(served, wire, client_id)
        (reply,) = (await wire.post(subscribe(client_id, "/halley/*"))).messages
        assert reply["error"] == "403:denied_by_security_policy:subscribe_denied"


async def test_s15_wildcards_above_it_do_not_hear_the_servers_own_room(served):
    """Wildcards above `/halley` match neither `/halley` nor the channels below it."""
    client_id = await served.open_session("/**", "/*", "/halley/tests/*")  # on /halley/* the server itself publishes
    wire = await served.wire()
    own = [publish("/halley", "no one"), publish("/halley/tests/one", "by its name")]
    await wire.post(*own, publish("/x", "everyone"))
    await hears(served, wire, client_id, "by its name", "everyone")


@pytest.mark.parametrize(
    ("names", "error"),
    [
        pytest.param([f"/n{n}" for n in range(129)], "too_many_subscriptions", id="129-at-once"),
        pytest.param([f"/n{n}/*" for n in range(17)], "too_many_patterns", id="17-patterns-at-once"),
    ],
)
async def test_s16_too_many_subscriptions_are_refused_and_the_earlier_ones_live(served, names, error):
    """S16: subscriptions beyond the limit are refused, in one message or one by one; the session stays."""
    client_id = await served.open_session()
    wire = await served.wire()
    denied = f"403:{error}:subscribe_denied"
    (reply,) = (await wire.post(subscribe(client_id, *names))).messages
    assert reply["error"] == denied
    assert served.halley.session(client_id).subscriptions == []
    *good, last = await wire_all(wire, [subscribe(client_id, name) for name in names])
    assert all(reply["successful"] for reply in good)
    assert last["error"] == denied
    assert sorted(served.halley.session(client_id).subscriptions) == sorted(names[:-1])
    again, other = await wire_all(wire, [subscribe(client_id, names[0]), unsubscribe(client_id, names[0])])
    assert again["successful"] is True
    assert other["successful"] is True
    assert (await wire.post(subscribe(client_id, names[-1]))).messages[0]["successful"] is True


async def wire_all(wire, messages):
    return (await wire.post(*messages)).messages


@pytest.mark.parametrize(
    "name",
    [
        "/a" * 17,
        "/" + "a" * 255,
        "/" + "a" * 60_000,
        "/a\u0007",
        "/a\n",
        "/\u001b[31m",
        "/a b",
        "/ä",
        "/a/",
        "a",
        "",
        "/",
        "/a//b",
        "/a/*/b",
        "/**/a",
        "/a*",
        "/***",
        "/<script>",
        "/a.b",
        "/a\u0000",
        "/\U0001f600",
    ],
    ids=lambda name: ascii(name)[:24],
)
async def test_s16_a_name_beyond_the_grammar_is_refused(served, name):
    """S16: names that are too long, too deep or have other characters are refused; no `<` is echoed."""
    client_id = await served.open_session("/keeps")
    wire = await served.wire()
    before = served.books()
    answer = await wire.post(publish(name, CANARY), subscribe(client_id, name), unsubscribe(client_id, name))
    errors = [message["error"] for message in answer.messages]
    assert errors == ["405::channel_invalid", "403::subscription_invalid", "403::subscription_invalid"]
    assert b"<" not in answer.body
    assert len(answer.body) < 2_500
    assert served.books() == before


@pytest.mark.parametrize("name", ["/a" * 16, "/" + "a" * 254, "/-_!~()$@/Az09", "/v2!41", "/!ff/!21", "/!c3!a9"])
async def test_s16_names_at_the_limit_are_served(served, name):
    """S16: names of 16 segments, of 255 characters and with every mark of the grammar are accepted, wherever it is."""
    client_id = await served.open_session()
    wire = await served.wire()
    answer = await wire.post(subscribe(client_id, name), publish(name, 1, clientId=client_id))
    assert [reply["successful"] for reply in answer.replies] == [True, True]
    assert answer.data == [1]


@pytest.mark.parametrize(
    "message_id",
    [
        {"c4n4ry": 1},
        ["c4n4ry"],
        "<script>c4n4ry</script>",
        "c4n4ry" * 30_000,
        "c4n4ry\n",
        "c4n4ry ä",
        "",
        True,
        1.5,
        2**70,
    ],
    ids=lambda value: ascii(value)[:20],
)
async def test_s17_an_id_that_is_none_is_refused_and_not_echoed(served, message_id):
    """S17: a message whose id has a wrong type or form is refused, and the id is not echoed."""
    wire = await served.wire()
    for message in (publish("/a", 1, id=message_id), HANDSHAKE | {"id": message_id}):
        before = served.books()
        answer = await wire.post(message)
        assert answer.status == 200
        (reply,) = answer.messages
        assert reply["successful"] is False
        assert reply["error"] == "405::message_id_invalid"
        assert "id" not in reply
        assert CANARY.encode() not in answer.body
        assert served.books() == before


@pytest.mark.parametrize("message_id", ["1", 1, 0, -1, "a.B-c_d:9", "x" * 64, 2**63, 2**64 - 1])
async def test_s17_an_id_is_echoed_as_it_came(served, message_id):
    """A2: an id is echoed with its type."""
    wire = await served.wire()
    (reply,) = (await wire.post(publish("/a", 1, id=message_id))).messages
    assert reply == {"id": message_id, "channel": "/a", "successful": True}
    assert type(reply["id"]) is type(message_id)


@pytest.mark.parametrize("timeout", ["x", True, [], {}, "1000"], ids=repr)
@pytest.mark.parametrize("field", ["timeout", "interval"])
async def test_s17_advice_that_is_no_number_refuses_the_connect(served, timeout, field):
    """S17: only the message with bad advice is refused; the session can still be used."""
    client_id = await served.open_session()
    wire = await served.wire()
    (reply,) = (await wire.post(connect(client_id, advice={field: timeout}))).messages
    assert (reply["successful"], reply["error"]) == (False, "400::advice_invalid")
    await hears(served, wire, client_id)


@pytest.mark.parametrize(("timeout_ms", "held_s"), [(-1, 0), (-1e308, 0), (1e308, 25), (3_600_000, 25), (2**63, 25)])
async def test_s17_the_timeout_a_client_asks_for_is_clamped(served, timeout_ms, held_s):
    """S17: the timeout is clamped to 0..hold, so that a client cannot keep a poll or its session longer."""
    client_id = await served.open_session()
    wire, now = await served.wire(), asyncio.get_running_loop().time
    began = now()
    await wire.send(post(json.dumps(connect(client_id, advice={"timeout": timeout_ms})).encode()))
    session = served.house.broker.sessions[client_id]
    if held_s == 0:
        assert (await wire.read()).messages[0]["successful"] is True
        return
    await served.until(lambda: session.held is not None)
    assert session.held.wait_s == held_s
    assert began + held_s <= session.deadline <= now() + held_s
    await wire.close()
    await served.until(lambda: session.held is None)


@pytest.mark.parametrize(("interval_ms", "kept_s"), [(-5, 0), (30_000, 30), (1e300, 60), (2**63, 60)])
async def test_s17_the_interval_a_client_asks_for_is_clamped(served, interval_ms, kept_s):
    """The interval is clamped to 0..60 s, so that a session is not kept longer for it (CometD #322)."""
    client_id = await served.open_session()
    wire, now = await served.wire(), asyncio.get_running_loop().time
    began = now()
    (reply,) = (await wire.post(connect(client_id, advice={"timeout": 0, "interval": interval_ms}))).messages
    assert reply["advice"]["interval"] == kept_s * 1_000
    session = served.house.broker.sessions[client_id]
    kept_s += session.max_interval_s
    assert began + kept_s <= session.deadline <= now() + kept_s


async def test_e1_a_session_survives_a_truncated_request(served):
    """E1, S8: a truncated request is 400, and its session can be used as before."""
    client_id = await served.open_session("/a")
    wire = await served.wire()
    body = json.dumps([publish("/a", CANARY, clientId=client_id)]).encode()[:-3]
    answer = await wire.request(post(body))
    assert (answer.status, answer.text) == (400, "body is not JSON")
    await wire.post(publish("/a", 1))
    await hears(served, wire, client_id, 1)


async def test_e2_markup_comes_back_as_json_text_at_most(served):
    """E2: `<` in an id, channel or subscription is escaped or not echoed, so that it cannot be read as markup."""
    client_id = await served.open_session()
    wire = await served.wire()
    script = "<script>alert(1)</script>"
    answer = await wire.post(
        publish("/a", 1, id=script),
        publish(f"/foo{script}", 1),
        subscribe(client_id, f"/bar{script}"),
        unsubscribe(client_id, f"/bar{script}"),
        {"channel": "/meta/disconnect", "clientId": script},
        {"channel": script, "clientId": script, "id": script, "subscription": script},
    )
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"<" not in answer.body
    assert not any(message["successful"] for message in answer.messages)


async def test_e6_an_empty_object_gets_its_error(served):
    """E6, A69: an empty object gets 200 and `400::channel_missing`."""
    wire = await served.wire()
    answer = await wire.post({})
    assert (answer.status, answer.messages) == (200, [{"successful": False, "error": "400::channel_missing"}])


@pytest.mark.parametrize("others", [[subscribe("x", "/never")], [publish("/never", CANARY)], [connect("x")]])
async def test_e9_what_follows_a_handshake_is_not_executed(served, others):
    """E9, A28, A29: messages after a handshake are not processed; the only reply is the handshake's."""
    listener = await served.open_session("/never")
    wire = await served.wire()
    answer = await wire.post(HANDSHAKE, *others)
    (reply,) = answer.messages
    assert (answer.status, reply["channel"], reply["successful"]) == (200, "/meta/handshake", True)
    assert served.halley.session(reply["clientId"]).subscriptions == []
    await hears(served, wire, listener)


async def test_e9_a_handshake_that_is_not_first_fails_alone(served):
    """A28: a handshake that is not the first message fails and opens no session; the other messages are processed."""
    wire = await served.wire()
    sessions = len(served.house.broker.sessions)
    answer = await wire.post(publish("/a", 1), HANDSHAKE, publish("/a", 2))
    assert [reply["successful"] for reply in answer.messages] == [True, False, True]
    failed = answer.messages[1]
    assert failed["error"] == "403::handshake_failed"
    assert failed["advice"]["reconnect"] == "none"
    assert "clientId" not in failed
    assert len(served.house.broker.sessions) == sessions
