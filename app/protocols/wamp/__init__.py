"""WAMP v2: the broker's part of it, with event history, and the meta API as its dealer's only procedures."""
