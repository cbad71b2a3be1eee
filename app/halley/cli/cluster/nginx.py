"""The configuration of an nginx in front of the nodes of one machine, so that they are one server at one address.

It has what `deploy/nginx/` recommends, with the numbers of the settings. Any node serves any request, but the
one that has its session does it at a third of the cost. So a browser's requests go to the node that its cookie names,
and those without such a cookie to one node for each address, or WebSockets to the node with the fewest. Requests that
could not be sent to a node, since it does not run at present, go to another one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from halley.protocols.nt4.names import BASE
from halley.settings import Settings, is_loopback
from halley.transports.api.application import LOG

_CONNECTIONS = 32_768
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def program() -> str | None:
    """The path of nginx on this machine; None if it is not installed."""
    return shutil.which(
        "nginx", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    )


def whole(folder: Path, included: Path, open_files: int | None) -> str:
    """The main file of an nginx that only serves Halley, with its files in `folder`, and with a limit of open files."""
    connections = _CONNECTIONS if open_files is None else min(_CONNECTIONS, open_files // 2)
    temporary = "".join(f"    {kind}_temp_path {quoted(folder / kind)};\n" for kind in _TEMPORARY)
    return f"""\
# Written by halley cluster at each start: a complete nginx.conf for an nginx that only serves Halley.
daemon off;
worker_processes auto;
worker_rlimit_nofile {2 * connections};
pid {quoted(folder / "nginx.pid")};
error_log stderr crit;                    # lower levels log whole requests

events {{
    worker_connections {connections};            # a held poll needs two, one to the client and one to Halley
}}

http {{
{temporary}    include {quoted(included)};
}}
"""


def site(settings: Settings, nodes: dict[str, int], keeper: int, port: int) -> str:
    """The file for the block `http` of an nginx that listens on `settings.host` and `port`.

    `nodes` are the ports of those that serve clients, by the ids with which cookies begin; `keeper` is the port of that
    with the log.
    """
    limits, tls = settings.limits, settings.tls
    listen = f"[{settings.host}]:{port}" if ":" in settings.host else f"{settings.host}:{port}"
    secure = ""
    if tls.cert:
        listen += " ssl http2"
        secure = f"""\
    ssl_certificate {quoted(Path(tls.cert).absolute())};
    ssl_certificate_key {quoted(Path(tls.key or tls.cert).absolute())};
    ssl_protocols {"TLSv1.3" if tls.min_version == "1.3" else "TLSv1.2 TLSv1.3"};
    ssl_session_cache shared:halley_tls:10m;
"""
    per_address = ""
    if not is_loopback(settings.host):  # a held poll and a publish for each session; then 503
        per_address = f"    limit_conn halley_per_address {2 * limits.sessions_per_address};\n"
    cookie = re.sub(r"\W", "_", settings.cookie.name)
    cookies = "".join(f"    ~^{node} halley_{node};\n" for node in nodes)
    upstreams = "\n".join(_upstreams(nodes, keeper, limits.keep_alive_s))
    return f"""\
# Written by halley cluster at each start, for the block http of an nginx.

map $http_upgrade $halley_connection {{
    default upgrade;
    ""      "";                           # other requests share connections, which are kept open
}}

map $remote_addr $halley_client {{
    default   $remote_addr;
    127.0.0.1 $remote_port;               # programs of this machine have one address, and are spread by connection
    ::1       $remote_port;
}}

map $cookie_{cookie} $halley_of_cookie {{
    default halley_of_client;
{cookies}}}

map $cookie_{cookie} $halley_of_socket {{
    default halley_fewest;                # a Bayeux session that comes back goes to its node
{cookies}}}

map $http_upgrade $halley_node {{
    default     $halley_of_cookie;
    ~*websocket $halley_of_socket;
}}

map "$request_method $http_accept" $halley_stream_reader {{
    default                      "";
    "~*^GET .*text/event-stream" 1;       # not a POST: its sender would take the 200 below for Halley's
}}

{_scheme(settings)}limit_conn_zone $binary_remote_addr zone=halley_per_address:10m;

{upstreams}
server {{
    listen {listen};
{secure}
    access_log off;                       # a JSONP query contains session ids and messages
    client_header_timeout {limits.head_s:g}s;
    client_body_timeout {limits.body_s:g}s;
    client_max_body_size {limits.body_bytes};
    client_body_buffer_size {limits.body_bytes};       # no body is written to disk
    send_timeout {limits.write_s:g}s;
    keepalive_timeout {limits.keep_alive_s:g}s;
    large_client_header_buffers 4 {limits.head_bytes};
{per_address}{_real_address(settings)}    server_tokens off;

    proxy_http_version 1.1;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $halley_connection;
    proxy_set_header Host $http_host;                 # with its port: Halley compares the page's origin with it
    proxy_set_header X-Forwarded-For $remote_addr;    # replaces what the client sent
    proxy_set_header X-Forwarded-Proto {"$halley_scheme" if settings.proxies else "$scheme"};
    proxy_connect_timeout 5s;
    proxy_read_timeout {max(60.0, settings.bayeux.hold_s + 35):g}s;           # above the time for which a poll is held
    proxy_send_timeout 10s;
    proxy_buffering off;                  # responses are passed on immediately; unread ones wait in Halley
    gzip off;                             # Halley does, but for answers with secrets (BREACH)

    location / {{
        error_page 418 = @jsonp;
        if ($arg_message) {{
            return 418;
        }}
        proxy_pass http://$halley_node;
        proxy_next_upstream error;        # a POST that was sent is never repeated, it may have been published
        if ($halley_stream_reader) {{
            error_page 502 503 504 = @away;
        }}
    }}

    location @away {{                       # a browser ends a stream for ever at any other status than 200
        default_type text/event-stream;
        add_header Access-Control-Allow-Origin $http_origin;    # of any page: there is nothing to read
        add_header Access-Control-Allow-Credentials true;
        add_header Cache-Control no-store;
        return 200 "retry: 3000\n";
    }}

    location ~ ^{LOG}(/|$) {{                 # for the pipeline, which reads the log of the node that keeps it
        proxy_pass http://127.0.0.1:{keeper};
    }}

    location {BASE}/ {{                        # one node serves NetworkTables, and the others answer 503
        proxy_pass http://halley_nt4;
        proxy_next_upstream error http_503;
    }}

    location @jsonp {{
        proxy_pass http://$halley_node;
        proxy_next_upstream off;          # a GET with messages is not repeated either
    }}
}}
"""


def _upstreams(nodes: dict[str, int], keeper: int, keep_alive_s: float) -> Iterator[str]:
    """The groups of servers: all by client, all by their connections, and each node with another in its place.

    And all with the keeper, of which one serves NetworkTables.
    """
    ports = [*nodes.values()]
    groups = {"of_client": ["hash $halley_client consistent"], "fewest": ["least_conn"]}
    for lines in groups.values():
        lines += [f"server 127.0.0.1:{port} max_fails=0" for port in ports]
    groups["nt4"] = [f"server 127.0.0.1:{port} max_fails=0" for port in dict.fromkeys([*ports, keeper])]
    for (node, own), spare in zip(nodes.items(), ports[1:] + ports[:1], strict=True):
        groups[node] = [f"server 127.0.0.1:{own} max_fails=0"]
        if spare != own:
            groups[node].append(f"server 127.0.0.1:{spare} max_fails=0 backup")
    for name, lines in groups.items():
        lines += ["keepalive 64", f"keepalive_timeout {0.8 * keep_alive_s:g}s"]  # no POST meets a closing connection
        yield f"upstream halley_{name} {{\n" + "".join(f"    {line};\n" for line in lines) + "}\n"


def _scheme(settings: Settings) -> str:
    """How the scheme is taken from what proxies before this nginx say."""
    if not settings.proxies:
        return ""
    proxies = "".join(f"    {proxy} 1;\n" for proxy in settings.proxies)
    return f"""\
geo $realip_remote_addr $halley_is_proxied {{
    default 0;
{proxies}}}

map $halley_is_proxied$http_x_forwarded_proto $halley_scheme {{
    default $scheme;
    1http http;
    1https https;
}}

"""


def _real_address(settings: Settings) -> str:
    """How the client's address is taken from what proxies before this nginx say."""
    if not settings.proxies:
        return ""
    proxies = "".join(f"    set_real_ip_from {proxy};\n" for proxy in settings.proxies)
    return f"{proxies}    real_ip_header X-Forwarded-For;\n    real_ip_recursive on;\n"


def quoted(path: Path) -> str:
    r"""A path as a word of the configuration, where only ", \ and $ are special."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
