"""The embedding API: a Bayeux server inside a Python program, as CometD is used in Java.

    from halley.embed import Halley

    halley = Halley()

    @halley.service("/service/echo")
    def echo(session, message):
        return message.data

    app = Starlette(routes=[Mount("/", halley.app)], lifespan=halley.lifespan)

or `halley serve --load module:setup`, where `setup(halley)` registers the same hooks. All hooks are called on the event
loop's thread. Policies and services may be coroutine functions; all other hooks must return without blocking.

This module has all names that a program needs to be written and type-checked; the tables of `Settings` (`Bayeux`,
`History`, `Limits` and so on) are in `halley.settings`.
"""

from halley.broker.policy import Identity
from halley.configuration import BadSettings
from halley.configuration.protection import NotProtected
from halley.embed.halley import Halley, load
from halley.embed.hooks import Extension, Policy
from halley.embed.local_session import LocalSession
from halley.embed.server_session import ServerSession
from halley.protocols.bayeux.hooks import Fields, Refused
from halley.protocols.bayeux.messages import HttpContext, Message
from halley.settings import Settings

__all__ = [
    "BadSettings",
    "Extension",
    "Fields",
    "Halley",
    "HttpContext",
    "Identity",
    "LocalSession",
    "Message",
    "NotProtected",
    "Policy",
    "Refused",
    "ServerSession",
    "Settings",
    "load",
]
