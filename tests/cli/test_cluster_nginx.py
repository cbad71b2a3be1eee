"""The configuration that `halley cluster` writes for nginx, as nginx reads it."""

from __future__ import annotations

import subprocess

from support import authority
from support.programs import require_program

from halley.cli.cluster import nginx
from halley.processes import free_port
from halley.settings import Settings, Tls


def test_nginx_takes_its_configuration(tmp_path):
    """Also with TLS and behind other proxies, whose addresses are not the clients'."""
    program = require_program("nginx")
    cert, key = authority.folder() / "cert.pem", authority.folder() / "key.pem"
    settings = Settings(host="::1", open=True, proxies=("10.0.0.0/8", "fd00::1"), tls=Tls(str(cert), str(key)))
    for number, each in enumerate((Settings(), settings)):
        folder = tmp_path / f"it's {number}"
        folder.mkdir()
        (folder / "site").write_text(
            nginx.site(each, {"abcd": free_port(), "2345": free_port()}, free_port(), free_port())
        )
        (folder / "whole").write_text(nginx.whole(folder, folder / "site", 1_000))
        done = subprocess.run([program, "-t", "-c", folder / "whole"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
