"""The container image, really built from the Dockerfile that is shipped, and its file system to run things in.

Its base cannot be fetched from a registry of images, so the base is made of Debian's packages: Python as in the image
that the Dockerfile names, and systemd for tests that boot the built image.

It is built by the first test that needs it, or beforehand, into a folder that `TESTS_IMAGES` then names:

    PYTHONPATH=tests python -m support.image FOLDER

What has been compiled for the image can be tested outside of it too. This copies the installed Halley from the image
into an environment, or exits with 1 if the image is not there or its Python is of another version:

    PYTHONPATH=tests python -m support.image FOLDER SITE_PACKAGES
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from support.programs import require_program, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parents[2]
DOCKERFILE = TOP / "deploy" / "docker" / "Dockerfile"

BUILT = "TESTS_IMAGES"
"""The variable that names a folder with images that are built already."""

_STEP_S = 900
_PACKAGES = "python3,python3-dev,python3-venv,systemd,systemd-sysv"  # with headers, as the base that is named has them
_TRUSTED = Path("/etc/ssl/certs/ca-certificates.crt")
"""The authorities that this machine trusts: pip may reach the package index through a proxy with its own one."""

READ_ONLY = """\
set -e
ip link set lo up
mount --bind "$1" "$1"
mount --bind /dev "$1/dev"
mount --bind "$2" "$1/data"
mount -o remount,bind,ro "$1"
root=$1 user=$3
shift 3
cd "$root"
exec setpriv --no-new-privs chroot --userspec="$user" "$root" env -i "$@"
"""
"""Arguments: the file system, the folder for /data, the user, then variables and a command."""


class Image(NamedTuple):
    """A container's file system, and the image's configuration: `User`, `Env`, `Entrypoint`, `Healthcheck` ..."""

    root: Path
    config: dict[str, Any]

    @property
    def start(self) -> list[str]:
        """The variables and the command, as arguments for `env`."""
        return [*self.config["Env"], *self.config["Entrypoint"], *self.config["Cmd"]]

    def contained(self, data: Path) -> tuple[str, ...]:
        """Return a command that runs the image's command with its own network; only /data is writable."""
        namespaces = ("unshare", "--mount", "--net")
        return (*namespaces, "sh", "-c", READ_ONLY, "sh", str(self.root), str(data), self.config["User"], *self.start)

    def beside(self, pid: int, *command: str) -> tuple[str, ...]:
        """Return a command that runs another one in the same container, as `docker exec` does."""
        joined = ("nsenter", f"--target={pid}", "--mount", "--net", "chroot", f"--userspec={self.config['User']}")
        return (*joined, str(self.root), "env", "-i", *self.config["Env"], *command)


class Store:
    """The folder with the images and containers of a test run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def buildah(self, *arguments: str) -> str:
        """Run buildah, without a daemon and without separate namespaces; return its output."""
        places = ("--root", str(self._folder / "root"), "--runroot", str(self._folder / "run"))
        return _run("buildah", *places, *arguments, BUILDAH_ISOLATION="chroot")

    def build(self) -> None:
        """Build the base, then Halley's image on it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tar = self._folder / "base.tar"
        lean = ("--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*")
        _run("mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", *lean, "bookworm", str(tar))
        base = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", base, str(tar), "/")
        if _TRUSTED.exists():
            self.buildah("copy", "--quiet", base, str(_TRUSTED), str(_TRUSTED))
            self.buildah("config", "--env", f"PIP_CERT={_TRUSTED}", base)
        self.buildah("commit", "--quiet", base, "localhost/base")
        options = ("--format", "docker", "--network", "host", "--build-arg", "PYTHON_IMAGE=localhost/base")
        self.buildah("bud", *options, "--tag", "localhost/halley", "--file", str(DOCKERFILE), str(TOP))

    @contextmanager
    def container(self) -> Iterator[Image]:
        """Make a container of Halley's image, whose file system is mounted until the block ends."""
        container = self.buildah("from", "localhost/halley")
        config = json.loads(self.buildah("inspect", "--type", "image", "localhost/halley"))["Docker"]["config"]
        try:
            yield Image(Path(self.buildah("mount", container)), config)
        finally:
            self.buildah("umount", container)
            self.buildah("rm", container)


def need_builder() -> None:
    """Skip the test unless slow tests must run (`TESTS_NO_SKIP=1`) and this machine can build images."""
    if os.environ.get("TESTS_NO_SKIP") != "1":
        unavailable("an image takes minutes: TESTS_NO_SKIP=1")
    if os.geteuid() != 0:
        unavailable("containers need root here")
    for program in ("buildah", "mmdebstrap", "systemd-nspawn", "ip"):
        require_program(program)
    try:
        _run("unshare", "--mount", "--net", "ip", "link", "set", "lo", "up")
    except AssertionError as refused:
        pytest.skip(f"the machine is a container that cannot make another, with any programs installed: {refused}")


def _run(*command: str, **variables: str) -> str:
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=_STEP_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4_000:]}"
    return done.stdout.strip()


def _build(folder: str) -> int:
    """Build the image, or say why that is not possible here, so that the tests will be skipped too."""
    try:
        need_builder()
    except pytest.skip.Exception as reason:
        print(reason)
    else:
        Store(Path(folder)).build()
    return 0


def _copy(folder: str, site_packages: str) -> int:
    """Copy Halley, as the image has it installed, into an environment; return the exit code."""
    if not Path(folder).exists():
        return 1
    with Store(Path(folder)).container() as image:
        (of_image,) = (image.root / "opt/halley/lib").glob("python3.*/site-packages")
        (compiled,) = of_image.glob("halley__mypyc.*.so")
        if not compiled.name.endswith(sysconfig.get_config_var("EXT_SUFFIX")):
            return 1
        shutil.copy2(compiled, site_packages)
        for package in of_image.glob("halley*/"):
            shutil.copytree(package, Path(site_packages, package.name))
    return 0


if __name__ == "__main__":
    sys.exit(_copy(*sys.argv[1:]) if len(sys.argv) > 2 else _build(*sys.argv[1:]))
