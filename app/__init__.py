"""Halley: one server and one shared broker for real-time messaging."""

__version__ = "0.1.0"
