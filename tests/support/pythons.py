"""The versions of Python that Halley is for, as `pyproject.toml` has them."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from support.readme import ROOT

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
_CLASSIFIER = "Programming Language :: Python :: "

OLDEST: str = PROJECT["requires-python"].removeprefix(">=")
"""The oldest version with which pip installs Halley."""

VERSIONS: list[str] = [
    text.removeprefix(_CLASSIFIER) for text in PROJECT["classifiers"] if text.startswith(_CLASSIFIER)
]
"""The versions with which all tests are run."""

COMPILED_FOR = [re.sub(r"cp3(\d+)-.*", r"3.\1", build) for build in PYPROJECT["tool"]["cibuildwheel"]["build"]]
"""The versions for which a release has compiled wheels."""
