"""Decisions of the guard on request heads: addresses of every kind, ports, several listeners."""

from __future__ import annotations

import pytest

from halley.settings import Cors, Settings, is_loopback
from halley.transports.guard import Guard, Rejection
from halley.transports.head import Head

METHODS = ("GET", "POST", "OPTIONS")


def head(method="POST", query=b"", **fields):
    """Make a request's head; header names have `_` for `-`."""
    named = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in fields.items()}
    return Head(method, "/bayeux", query, named, "", "http")


def guard(host="127.0.0.1", hosts=(), origins=(), **more):
    return Guard(Settings(host=host, hosts=hosts, cors=Cors(origins=origins), **more))


def refusal(call, *arguments):
    with pytest.raises(Rejection) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("127.1", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_what_can_only_mean_this_machine(host, expected):
    """Names and numbers that only resemble loopback's are other machines."""
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]", "[::1]:8080", "127.9.9.9"]
)
def test_a_loopback_listener_answers_to_loopback_names(host):
    """S7: a loopback name with any port is accepted."""
    guard().check_host(host.encode())


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1.example.org", "localhost.", "[::1", "", "user@127.0.0.1", "127.0.0.1:x", "a b"]
)
def test_and_to_no_other(host):
    """S7: with DNS rebinding Host is the name of the attacker's page."""
    assert refusal(guard().check_host, host.encode()).status == 400


def test_a_name_that_is_listed_is_served_on_loopback_too():
    """Behind a proxy on the same machine Host is the public name, which `hosts` lists."""
    listed = guard(hosts=("Halley.example",))
    listed.check_host(b"halley.EXAMPLE:443")
    listed.check_host(b"localhost")
    assert refusal(listed.check_host, b"example").status == 400


def test_a_listener_for_others_answers_to_its_names_or_to_any():
    """Settings: with empty `hosts` any Host is accepted, but it is required."""
    guard(host="0.0.0.0").check_host(b"whatever.example")
    named = guard(host="0.0.0.0", hosts=("halley.example",))
    named.check_host(b"halley.example")
    for host in ("localhost", "127.0.0.1", "other.example"):
        assert refusal(named.check_host, host.encode()).status == 400


@pytest.mark.parametrize("hosts", [(), (b"localhost", b"localhost")])
def test_one_host_is_needed(hosts):
    """S1: no Host and two, even equal ones, are refused; then the connection is closed."""
    rejection = refusal(guard(host="0.0.0.0").check_host, *hosts)
    assert (rejection.status, rejection.closes) == (400, True)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("halley.example", "http://halley.example"),
        ("halley.example", "https://halley.example"),
        ("halley.example:443", "https://halley.example"),
        ("halley.example", "http://halley.example:80"),
        ("halley.example:8080", "http://halley.example:8080"),
        ("HALLEY.example:8080", "http://halley.example:8080"),
        ("[2001:db8::1]:8080", "http://[2001:db8::1]:8080"),
    ],
)
def test_an_origin_that_equals_host_is_the_same_site(host, origin):
    """Name and port are compared, not the scheme: a proxy may add https."""
    cors = guard(host="0.0.0.0").check(head(host=host, origin=origin), METHODS)
    assert dict(cors)[b"access-control-allow-origin"] == origin.encode()


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("halley.example", "http://halley.example:8080"),
        ("halley.example:8080", "http://halley.example"),
        ("halley.example", "http://www.halley.example"),
        ("halley.example", "file://halley.example"),
        ("halley.example", "null"),
        ("halley.example", ""),
        ("halley.example", "http://"),
        ("halley.example", "http://halley.example.evil"),
    ],
)
def test_any_other_origin_is_another_site(host, origin):
    """S19, S20: refused with 403, a preflight with 400; neither shows which origins are allowed."""
    closed = guard(host="0.0.0.0")
    for method, status in (("POST", 403), ("GET", 403), ("OPTIONS", 400)):
        rejection = refusal(closed.check, head(method, host=host, origin=origin), METHODS)
        assert rejection.status == status
        assert rejection.headers == ()


def test_a_list_of_origins_is_compared_without_case_and_as_a_whole():
    """A62, S21: the response repeats the browser's own spelling, which it compares letter by letter."""
    listed = guard(host="0.0.0.0", origins=("https://App.example",))
    cors = listed.check(head(host="h", origin="https://aPP.example"), METHODS)
    assert dict(cors)[b"access-control-allow-origin"] == b"https://aPP.example"
    for origin in ("https://app.example/", "https://app.example:443", "https://app.example, https://app.example"):
        assert refusal(listed.check, head(host="h", origin=origin), METHODS).status == 403


@pytest.mark.parametrize("origins", [(), ("https://app.example",)])
def test_whether_pages_of_other_sites_come_in_at_all(origins):
    """The connection types that a handshake offers depend on it; on loopback some pages are always allowed."""
    assert guard(host="0.0.0.0", origins=origins).serves_other_origins is bool(origins)
    assert guard(origins=origins).serves_other_origins is True


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "PATCH", "TRACE", "post"])
def test_methods_that_are_not_served(method):
    """S7: 405 with `Allow`."""
    rejection = refusal(guard().check, head(method, host="localhost"), METHODS)
    assert (rejection.status, rejection.headers) == (405, ((b"allow", b"GET, POST, OPTIONS"),))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_length": "262144"}, None),
        ({"content_length": "262145"}, 413),
        ({"content_length": "9" * 400}, 413),
        ({"content_length": "1e3"}, 400),
        ({"content_length": "-1"}, 400),
        ({"content_encoding": "identity"}, None),
        ({"content_encoding": " Identity "}, None),
        ({"content_encoding": "br"}, 415),
        ({"content_encoding": "gzip, identity"}, 415),
        ({"upgrade": "WebSocket"}, 400),
        ({"upgrade": "h2c"}, None),
    ],
)
def test_what_a_body_and_a_connection_must_be(headers, status):
    """S5, S6: others are refused by the head alone, and the connection is closed."""
    wanted = head(host="localhost", **headers)
    if status is None:
        guard().check(wanted, METHODS)
    else:
        rejection = refusal(guard().check, wanted, METHODS)
        assert (rejection.status, rejection.closes) == (status, True)


def test_a_query_is_bounded_under_other_servers_too():
    """S2: 414; under Halley's own host it was checked before."""
    guard().check(head("GET", b"x" * 8_192, host="localhost"), METHODS)
    assert refusal(guard().check, head("GET", b"x" * 8_193, host="localhost"), METHODS).status == 414
