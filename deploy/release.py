"""Builds what a release consists of, checks it, and says how it is published.

    python deploy/release.py                 # source distribution, wheel and SBOM, in dist/
    python deploy/release.py --compiled      # also a wheel with compiled modules, for this Python and this platform
    python deploy/release.py --tag v1.0.0    # builds nothing: whether the commit may be released under this tag

It needs the extra `release` (`pip install '.[release]'`), and the package index for the build and for the SBOM, which
lists what a fresh installation of the wheel has, in the form of CycloneDX.

The version is `__version__` in `app/halley/__init__.py`, and nowhere else; the changelog's first heading names it.
Exit codes: 0, or 1 if a tool failed (it says why itself), or 2 with a sentence about what is wrong with the request.
"""  # noqa: INP001 - a program, not a module

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
TOOLS = {
    "build": "build",
    "twine": "twine",
    "check_wheel_contents": "check-wheel-contents",
    "cyclonedx_py": "cyclonedx-bom",
}
"""The modules that are run, with the packages that have them."""


class Refused(Exception):
    """The release cannot be built as requested; its text is one sentence for the user."""


def version() -> str:
    """Return the version of the sources."""
    source = (TOP / "app/halley/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert found is not None
    return found[1]


def newest_in_changelog() -> tuple[str, str]:
    """Return the version that the changelog's first heading names, and its date or `unreleased`."""
    changelog = (TOP / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(r"^## (\S+) - (\d{4}-\d\d-\d\d|unreleased)$", changelog, re.MULTILINE)
    if found is None:
        raise Refused("CHANGELOG.md has no heading of the form `## VERSION - YYYY-MM-DD`.")
    return found[1], found[2]


def check_tag(tag: str) -> None:
    """Raise `Refused` unless the sources are a release with this tag: version, changelog and tag agree."""
    if tag != f"v{version()}":
        raise Refused(f"The tag {tag} does not fit the version {version()}: its tag is v{version()}.")
    named, date = newest_in_changelog()
    if named != version():
        raise Refused(f"The first heading of CHANGELOG.md is about {named}, and the version is {version()}.")
    if date == "unreleased":
        raise Refused(f"CHANGELOG.md says that {named} is unreleased: write the date of the release there.")


def build(folder: Path, *, compiled: bool) -> None:
    """Build the source distribution and from it the wheel; with `compiled` another wheel, of the sources here."""
    plain = {name: value for name, value in os.environ.items() if name != "HALLEY_COMPILE"}
    _run("-m", "build", "--outdir", folder, TOP, environment=plain)
    if compiled:
        _run("-m", "build", "--wheel", "--outdir", folder, TOP, environment=plain | {"HALLEY_COMPILE": "1"})


def check(folder: Path) -> None:
    """Check metadata and contents of what was built."""
    wheels = sorted(folder.glob("*.whl"))
    _run("-m", "twine", "check", "--strict", *wheels, *folder.glob("*.tar.gz"))
    _run("-m", "check_wheel_contents", *wheels)


def write_sbom(wheel: Path, file: Path) -> None:
    """Install the wheel into a fresh environment, and write what that has then as a CycloneDX document."""
    with tempfile.TemporaryDirectory(prefix="halley-sbom-") as place:
        environment = Path(place, "environment")
        venv.create(environment)
        python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        _run("-m", "pip", "--python", python, "install", "--quiet", wheel)
        made = Path(place, file.name)
        options = ("--output-reproducible", "--of", "JSON", "--pyproject", TOP / "pyproject.toml", "-o", made)
        _run("-m", "cyclonedx_py", "environment", *options, python)
        document = json.loads(made.read_text(encoding="utf-8"))
    # `pyproject.toml` has no version, so the document's subject lacks it.
    document["metadata"]["component"] |= {"version": version(), "purl": f"pkg:pypi/halley-server@{version()}"}
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def release(folder: Path, *, compiled: bool) -> None:
    """Build and check everything in `folder`, which must be empty, and print what is there and what comes next."""
    missing = [package for module, package in TOOLS.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise Refused(f"A release is built with {', '.join(missing)}: pip install '.[release]'")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} is not an empty folder: delete it, or name another one by --folder.")
    build(folder, compiled=compiled)
    check(folder)
    (wheel,) = folder.glob("*-none-any.whl")
    write_sbom(wheel, folder / f"halley_server-{version()}.cdx.json")
    for file in sorted(folder.iterdir()):
        _print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}")
    tag = f"v{version()}"
    try:
        check_tag(tag)
    except Refused as reason:
        _print(f"Not yet to be published. {reason}")
    else:
        _print(f"To publish it: git tag {tag} && git push origin {tag}. The rest does .github/workflows/release.yml.")


def _run(*arguments: str | Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True, env=environment)  # noqa: S603 - our own arguments


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> int:
    """Read the arguments, do what they say, and return the exit code."""
    parser = argparse.ArgumentParser(description="Build and check a release of Halley.", allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=TOP / "dist", help="where to; it must be empty (default: dist)")
    parser.add_argument("--compiled", action="store_true", help="also a compiled wheel for this Python and platform")
    parser.add_argument("--tag", help="only check that the commit can be released with this tag")
    arguments = parser.parse_args()
    try:
        if arguments.tag is None:
            release(arguments.folder, compiled=arguments.compiled)
        else:
            check_tag(arguments.tag)
    except Refused as reason:
        sys.stderr.write(f"{reason}\n")
        return 2
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{' '.join(error.cmd[1:3])} failed with exit code {error.returncode}.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
