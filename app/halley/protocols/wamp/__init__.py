"""WAMP v2: a router with the broker role and event history; its dealer offers only the meta API's procedures."""
