"""Compiled or not, Halley is the same program: what a compiler might change for those who write and debug programs.

All other tests run over both: `TESTS_COMPILED=1` tells them that the installation is to be compiled.
"""

from __future__ import annotations

import ast
import asyncio
import os
import pickle
import re
import subprocess
import sys
import tomllib
import traceback
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest
from support.broker import Owner
from support.messages import HANDSHAKE
from support.nt4_peers import World
from support.server import serving

import halley
from halley.broker.broker import Broker
from halley.broker.errors import BadKey, DiskFull, TooManySessions, TooManySubscriptions
from halley.broker.events import Audience, Event, SessionFilter
from halley.broker.names import Match, Pattern
from halley.broker.sessions import Session
from halley.embed import Extension, Halley, Policy, Refused
from halley.protocols.contract import WireProtocol
from halley.protocols.nt4.errors import Undecodable
from halley.protocols.nt4.messages import Ignored
from halley.settings import Limits
from halley.transports.exchange import Exchange, while_connected

TOP = Path(__file__).parents[1]
HOOK = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"][
    "custom"
]
MODULES = sorted(
    str(path.relative_to(TOP / "app").with_suffix("")).replace("/", ".")
    for pattern in HOOK["modules"]
    for path in (TOP / "app").glob(pattern)
    if path.name != "__init__.py" and str(path.relative_to(TOP / "app")) not in HOOK["pure"]
)


def test_the_modules_are_what_they_are_thought_to_be():
    """Where the tests are told so, every module that the build compiles is an extension module; elsewhere none is."""
    is_asked_for = os.environ.get("TESTS_COMPILED") == "1"
    assert len(MODULES) > 60
    assert halley.is_compiled() is is_asked_for
    for module in MODULES:
        found = find_spec(module)
        assert found is not None
        assert found.origin.endswith(tuple(EXTENSION_SUFFIXES)) is is_asked_for, module
        assert sys.modules.get(module) is None or sys.modules[module].__file__ == found.origin


def test_what_is_named_is_there():
    """Each pattern of `pyproject.toml` finds a module, and the build hook is where it says."""
    assert (TOP / HOOK["path"]).is_file()
    assert all(any((TOP / "app").glob(pattern)) for pattern in HOOK["modules"])
    assert all((TOP / "app" / path).is_file() for path in HOOK["pure"])


def test_nothing_waits_while_it_handles_an_exception():
    """No compiled `except` or `finally` has a `yield` or an `await`.

    What mypyc compiles keeps the exception that it handles where all tasks of a thread have theirs. Where one waits
    there, others see that exception as their own, and a `raise` behind the wait may raise another task's.
    """
    found = []
    for module in MODULES:
        path = TOP / "app" / f"{module.replace('.', '/')}.py"
        for tried in ast.walk(ast.parse(path.read_text())):
            if isinstance(tried, ast.Try):
                handling = [*chain.from_iterable(each.body for each in tried.handlers), *tried.finalbody]
                waits = [ast.walk(each) for each in handling]
                found += [
                    f"{path.relative_to(TOP)}:{each.lineno}"
                    for each in chain.from_iterable(waits)
                    if isinstance(each, (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith))
                ]
    assert found == []


async def test_every_request_has_its_own_error():
    """Of several that fail at the same time, each raises what its own work has raised."""

    async def fail(number):
        raise ValueError(number)

    works = [while_connected(Exchange(), fail(at)) for at in range(5)]
    failed = await asyncio.gather(*works, return_exceptions=True)
    assert [each.args for each in failed] == [(at,) for at in range(5)]


def test_a_reader_of_networktables_leaves_no_exception_behind():
    """A binary message with a mistake yields that as its last message, and nobody else handles it then."""
    engine = World().peer().engine
    [*_, last] = [(message, sys.exc_info()) for message in engine.split(b"\x91", 0.0, is_binary=True)]
    assert isinstance(last[0], Undecodable)
    assert last[1] == (None, None, None)
    [ignored] = [(message, sys.exc_info()) for message in engine.split(b"[", 0.0, is_binary=False)]
    assert ignored == (Ignored("not_json"), (None, None, None))


def test_a_traceback_has_files_lines_and_functions():
    """Each frame names its file from `halley/` on, its line and its function."""
    broker = Broker(Limits())
    with pytest.raises(BadKey) as caught:
        broker.check_key("\n")
    frame = traceback.extract_tb(caught.tb)[-1]
    assert frame.filename.endswith("halley/broker/broker.py")
    assert frame.name == "check_key"
    assert (TOP / "app/halley/broker/broker.py").read_text().splitlines()[frame.lineno - 1].strip() == "raise BadKey"


def test_errors_have_the_same_texts():
    """Reasons and limits are those of the class, and can be asked of it without an instance."""
    assert (TooManySessions.reason, TooManySessions.limit) == ("no_room", "sessions")
    assert (DiskFull().reason, DiskFull().limit, DiskFull().cause) == (
        "history_unavailable",
        "free_bytes",
        "free_bytes",
    )
    assert (str(TooManySubscriptions()), repr(TooManySubscriptions())) == ("", "TooManySubscriptions()")
    assert repr(Event("a/b", b"1")) == "<Event 0 on a/b>"


@pytest.mark.parametrize(
    "value",
    [
        Pattern(Match.PREFIX, "a/b"),
        Audience(eligible_roles=("x",)),
        SessionFilter(frozenset({"1"})),
        Limits(),
        BadKey("x"),
    ],
)
def test_values_can_be_pickled(value):
    """Values reach other processes as they are."""
    copy = pickle.loads(pickle.dumps(value))
    assert (type(copy), str(copy)) == (type(value), str(value))
    assert isinstance(value, Exception) or copy == value


def test_functions_can_be_pickled():
    """Functions are pickled by their names."""
    for function in (find_spec, Broker.check_key, halley.is_compiled):
        assert pickle.loads(pickle.dumps(function)) is function


async def test_programs_subclass_what_they_embed():
    """A program's own server, policy and extension may derive from Halley's classes."""

    class Own(Halley):
        """A server with a room more."""

        own = "room"

    class Choosy(Policy):
        def can_handshake(self, session, message):
            return True

        def can_create(self, session, channel, message):
            return True

        def can_subscribe(self, session, channel, message):
            return channel != "/no"

        def can_publish(self, session, channel, message):
            if message.data == "no":
                raise Refused("not that")
            return True

    class Marking(Extension):
        def incoming(self, session, message):
            return message

        def outgoing(self, session, message):
            return {**message, "marked": True} if "data" in message else message

    class Mine(WireProtocol):
        name = "mine"

    def register(halley):
        halley.set_policy(Choosy())
        halley.add_extension(Marking())

    assert (Own().own, Mine().holds) == ("room", 0)
    async with serving(register=register) as served:
        heard = []
        local = served.halley.local_session("local")
        local.subscribe("/yes", lambda *what: heard.append(what))
        assert (await local.publish("/yes", "data"))["successful"]
        await served.until(lambda: heard)
        assert heard == [("/yes", "data")]
        wire = await served.wire()
        assert (await wire.post(HANDSHAKE)).messages[0]["successful"]


def test_a_session_takes_no_attribute_that_its_class_has_not():
    """Sessions are many: neither program lets them grow by a spelling mistake."""
    session = Session("1", "test", Owner(), Broker(Limits()).outbox())
    with pytest.raises(AttributeError):
        session.no_such_attribute = 1


def test_the_command_says_what_it_is(tmp_path):
    """`halley --version` says `compiled` where it is."""
    done = subprocess.run(
        [sys.executable, "-m", "halley", "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert bool(re.search("compiled", done.stdout)) is halley.is_compiled()
