"""What is said when the server starts and stops: to the terminal, and to the supervisor of the process.

The supervisor is systemd with `Type=notify`, see sd_notify(3); without `NOTIFY_SOCKET` in the environment it is not
notified.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from contextlib import suppress

from app import telemetry
from app.host.listening import Listeners, url_of
from app.server.composition import Server

READY = b"READY=1"
STOPPING = b"STOPPING=1"


def tell(state: bytes) -> None:
    """Send a state to the socket that the environment names; a supervisor that does not read it is not waited for."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.settimeout(0)
        told.sendto(state, "\0" + address[1:] if address.startswith("@") else address)


def announce(server: Server, listeners: Listeners) -> None:
    """Print the addresses and commands to try, log the listeners, and notify the supervisor."""
    settings, tls = server.settings, server.settings.tls
    url = url_of(listeners.public, "https" if tls.cert else "http")
    urls = [url]
    path = settings.bayeux.paths[0]
    console = f"{url}/" if "/bayeux" in settings.bayeux.paths else f"{url}/?server={path}"
    lines = [f"history: {server.history}"]
    if listeners.operations is not None:
        urls.append(url_of(listeners.operations))
        lines.append(f"health and metrics: {urls[-1]}/health/ready, /metrics")
    if listeners.nt4 is not None:
        urls.append(url_of(listeners.nt4, "ws"))
        lines.append(f"networktables: {urls[-1]}/nt/NAME")
    for listens in urls:
        telemetry.log.info("listening", url=listens)
    trust = f"--cacert {shlex.quote(tls.cert)} " if tls.cert else ""
    tries = [] if settings.access else try_next(trust + url + path)  # access rules could refuse them
    lines += [f"console: {console}", *tries, f"halley is listening on {url}"]
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201 - for the terminal that the server was started in
    tell(READY)


def try_next(bayeux: str) -> list[str]:
    """Return lines with three curl commands; `bayeux` is the address, after any options that it needs."""
    handshake = '{"channel":"/meta/handshake","version":"1.0","supportedConnectionTypes":["long-polling"]}'
    batch = """[{\\"channel\\":\\"/meta/subscribe\\",\\"subscription\\":\\"/hello\\",\\"clientId\\":\\"$id\\"},"""
    batch += """{\\"channel\\":\\"/hello\\",\\"data\\":\\"world\\"}]"""
    return [
        "try (and watch with: halley subscribe /hello)",
        f"""  curl {bayeux} -d '{{"channel":"/hello","data":"world"}}'""",
        f"""  id=$(curl -s {bayeux} -d '{handshake}' | grep -o '[0-9a-f]\\{{40\\}}'); curl {bayeux} -d "{batch}\"""",
        f"""  curl -G {bayeux} --data-urlencode jsonp=show --data-urlencode 'message={handshake}'""",
    ]
