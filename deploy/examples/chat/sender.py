"""Code in the server, which `load` in halley.toml names: each message says who has sent it, and nobody can lie."""

from halley.embed import Refused


def setup(halley):
    """Register a listener that adds the proven sender to each message, and drops what is not a text."""

    @halley.listener("/chat/**", vetoes=True)
    def sign(session, message):
        data = message.data if isinstance(message.data, dict) else {}
        text, to = data.get("text"), data.get("to")
        if not is_text(text, 2_000) or not (to is None or is_text(to, 32)):
            raise Refused("text_expected")
        message.data = {"from": message.identity.authid, "text": text} | ({"to": to} if to else {})


def is_text(value, most_chars):
    """Whether it is a text that is not empty and not too long."""
    return isinstance(value, str) and 0 < len(value) <= most_chars
