"""Listening sockets: a port of their own, or an error that names the flag to change."""

from __future__ import annotations

import socket

import pytest

from halley.host.listener import CannotListen, bind, url_of


@pytest.fixture
def taken():
    """A listening socket, whose port is taken."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def test_port_0_is_a_free_one():
    """A free port is picked; clients that connect before the server runs wait instead of being refused."""
    with bind("127.0.0.1", 0, "--port") as listener:
        host, port = listener.getsockname()
        assert port != 0
        with socket.create_connection((host, port), timeout=5):
            assert url_of(listener) == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("flag", ["--port", "--operations-port"])
def test_a_port_that_is_taken_names_its_flag(taken, flag):
    """The error names the flag with which to choose another port."""
    port = taken.getsockname()[1]
    with pytest.raises(
        CannotListen, match=rf"^cannot listen on 127\.0\.0\.1:{port} \(.+\); choose another with {flag}$"
    ):
        bind("127.0.0.1", port, flag)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machines_is_refused(host):
    """So is a host name that cannot be resolved; always with `CannotListen`."""
    with pytest.raises(CannotListen, match=f"cannot listen on {host}"):
        bind(host, 0, "--port")


def test_a_port_that_was_just_left_can_be_taken_again():
    """A restart need not wait until the kernel has forgotten old connections (E33)."""
    with bind("127.0.0.1", 0, "--port") as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port), timeout=5)
        listener.setblocking(True)
        accepted, _ = listener.accept()
        accepted.close()  # the side that closes first keeps the address for a while
    client.close()
    with bind("127.0.0.1", port, "--port") as again:
        assert again.getsockname()[1] == port


def test_an_address_of_ipv6_is_written_as_a_browser_takes_it():
    """RFC 3986, 3.2.2: the address is in brackets."""

    class Bound:
        def getsockname(self):
            return ("::1", 8080, 0, 0)

    assert url_of(Bound()) == "http://[::1]:8080"
