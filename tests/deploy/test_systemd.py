"""The shipped systemd unit: the findings of systemd's own tools, and how it runs under a real systemd."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.image import TOP
from support.programs import require_program

from halley.settings import Settings

UNIT = TOP / "deploy" / "systemd" / "halley.service"
INSTALLED = "/opt/halley/bin/halley"
MOST_EXPOSED = 2.0  # of 10, by `systemd-analyze security`
BOOT_S = 240

TRY = """\
[Unit]
After=basic.target

[Service]
Type=oneshot
StandardOutput=append:/told
StandardError=inherit
ExecStart=-/bin/sh /try.sh
ExecStopPost=/bin/systemctl poweroff --force --force
"""
SCRIPT = """\
say() { echo "== $1"; }
systemctl start halley
say started; systemctl show halley --property ActiveState,Result
python3 -c "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8081/health/ready').read())"
printf '[[access]]\nrole = "*"\nverb = "publish"\npattern = "/added"\n' >> /etc/halley/halley.toml
systemctl reload halley
until journalctl --unit halley --output cat | grep -q '"what":"settings"'; do sleep 0.1; done
post() { python3 -c "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/bayeux', b'[$1]').read())"; }
say reloaded; stat --format '%a %U' -L /run/halley/halley.toml; post '{"channel":"/added","data":1}'
 systemctl show halley --property ActiveState,Result
systemctl stop halley
say stopped; systemctl show halley --property ActiveState,Result,ExecMainStatus
echo 'port = "none"' > /etc/halley/halley.toml
systemctl start halley
say refused; journalctl --unit halley --output cat
stat --format '%a %n' /var/lib/private/halley
"""


def analyzed(tmp_path, *arguments):
    """Run `systemd-analyze` on the unit, with an existing program in it; return its exit code and all its output."""
    unit = tmp_path / "halley.service"
    text = UNIT.read_text()
    assert INSTALLED in text
    unit.write_text(text.replace(INSTALLED, sys.executable))
    command = [require_program("systemd-analyze"), *arguments, unit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_systemd_understands_it(tmp_path):
    """Every line of the unit is understood, or else systemd would print a message."""
    assert analyzed(tmp_path, "verify") == (0, "")


def test_it_leaves_little_open(tmp_path):
    """The unit's exposure, as systemd rates it, is low."""
    _, said = analyzed(tmp_path, "security", "--offline=true", "--no-pager")
    (exposure,) = re.findall(r"Overall exposure level for halley\.service: ([\d.]+)", said)
    assert float(exposure) < MOST_EXPOSED


def test_it_waits_until_halley_has_left():
    """The time limit of systemd covers the whole drain and the slowest write."""
    settings = Settings()
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    (not_ready_s,) = re.findall(r"HALLEY_DRAIN_NOT_READY_S=(\d+)", UNIT.read_text())
    leaving_s = int(not_ready_s) + settings.drain.spread_s + settings.drain.grace_s
    assert int(stop_s) >= leaving_s + settings.history.commit_s


@pytest.mark.nightly
def test_it_runs_under_systemd(image):
    """In a booted container, it starts, gets ready, reloads and exits 0; an error names the setting that is wrong."""
    units = image.root / "etc/systemd/system"
    (image.root / "etc/halley/halley.toml").chmod(0o600)
    (units / "halley.service").write_text(UNIT.read_text())
    (units / "try.service").write_text(TRY)
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/try.service").symlink_to("../try.service")
    (image.root / "try.sh").write_text(SCRIPT)
    alone = ("--register=no", "--keep-unit", "--private-network", "--console=pipe")
    command = ["systemd-nspawn", "--quiet", f"--directory={image.root}", *alone, "--boot"]
    booted = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOOT_S, check=False
    )
    told = image.root / "told"
    assert told.exists(), booted.stdout + booted.stderr
    _, started, reloaded, stopped, refused = re.split(r"^== \w+\n", told.read_text(), flags=re.MULTILINE)
    assert "ActiveState=active" in started
    assert "b'ready\\n'" in started
    assert "400 halley" in reloaded
    assert '"channel":"/added","successful":true' in reloaded
    assert "ActiveState=active" in reloaded
    assert "Result=success" in reloaded
    assert {"ActiveState=inactive", "Result=success", "ExecMainStatus=0"} <= set(stopped.splitlines())
    assert '"name":"SIGHUP","then":"reloads"' in refused
    assert '"event":"stopped"' in refused
    assert "halley.toml:1: port: expected a whole number" in refused
    assert "700 /var/lib/private/halley" in refused
