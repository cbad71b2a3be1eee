"""One server: its composition, its turns on the event loop, its life, and what it says about itself."""

from halley.server.composition import create_app

__all__ = ["create_app"]
