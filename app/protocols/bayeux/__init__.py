"""Bayeux, CometD's protocol: channels, sessions that poll, and replies with advice."""
