"""Halley: one server and one shared broker for real-time messaging."""

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec

__version__ = "1.0.0rc1"


def is_compiled() -> bool:
    """Whether the hot modules are compiled (`HALLEY_COMPILE=1 pip install .`); they do the same, in less time."""
    spec = find_spec("halley.broker.broker")
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)
