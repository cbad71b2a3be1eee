"""Events of channels as one HTTP response that stays open: server-sent events, or lines of JSON."""
