"""Bayeux, CometD's protocol: channels, sessions of polling clients, and replies with advice."""
