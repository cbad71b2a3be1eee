"""The embedding API: a Bayeux server inside a Python program, as CometD is used in Java.

    from halley.embed import Halley

    halley = Halley()

    @halley.service("/service/echo")
    def echo(session, message):
        return message.data

    app = Starlette(routes=[Mount("/", halley.app)], lifespan=halley.lifespan)

or `halley serve --load module:setup`, where `setup(halley)` registers the same hooks. All hooks are called on the event
loop's thread. Policies and services may be coroutine functions; all other hooks must return without blocking.
"""

from halley.broker.policy import Identity
from halley.configuration import BadSettings
from halley.configuration.protection import NotProtected
from halley.embed.halley import Halley, load
from halley.embed.local_session import LocalSession
from halley.embed.server_session import ServerSession
from halley.protocols.bayeux.hooks import Refused
from halley.protocols.bayeux.messages import Message

__all__ = [
    "BadSettings",
    "Halley",
    "Identity",
    "LocalSession",
    "Message",
    "NotProtected",
    "Refused",
    "ServerSession",
    "load",
]
