"""Reads a stream of server-sent events by a library, as its page shows it, and prints each event that it hands on.

It is what it was given as data, as JSON. `python streams.py httpx-sse http://127.0.0.1:8080/events/room`
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

PAUSE_S = 0.1
PATIENCE_S = 30


def heard(data):
    """Print one call of what a user would write."""
    print(json.dumps(data), file=sys.__stdout__, flush=True)


def httpx_sse(url):
    """It does not come back by itself: a loop does, which keeps the last id."""
    import httpx
    from httpx_sse import SSEError, connect_sse

    last = {}
    with httpx.Client(timeout=PATIENCE_S) as client:
        while True:
            try:
                with connect_sse(client, "GET", url, headers=last) as source:
                    for event in source.iter_sse():
                        last = {"Last-Event-ID": event.id}
                        if event.event == "message":
                            heard(event.data)
            except (httpx.TransportError, SSEError):
                pass
            time.sleep(PAUSE_S)


def sseclient(url):
    """It comes back once, and raises what happens then."""
    import requests
    from sseclient import SSEClient

    last = None
    while True:
        try:
            for event in SSEClient(url, last_id=last):
                last = event.id or last
                if event.event == "message":
                    heard(event.data)
        except requests.RequestException:
            time.sleep(PAUSE_S)


def requests_sse(url):
    """It comes back by itself, as often as it was asked to."""
    from requests_sse import EventSource

    with EventSource(url, timeout=PATIENCE_S, max_connect_retry=9) as source:
        for event in source:
            if event.type in (None, "message"):
                heard(event.data)


with contextlib.redirect_stdout(sys.stderr):  # where sseclient prints what it has lost
    {"httpx-sse": httpx_sse, "sseclient": sseclient, "requests-sse": requests_sse}[sys.argv[1]](sys.argv[2])
