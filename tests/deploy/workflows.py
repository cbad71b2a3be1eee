"""The workflows of `.github/workflows`, and a way to run the steps of a job as they are written."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from support.programs import require_module
from support.readme import ROOT

FOLDER = ROOT / ".github" / "workflows"
STEP_S = 900
_EXPRESSION = re.compile(r"\$\{\{ *([\w.]+) *\}\}")


def workflow(name: str) -> dict[str, Any]:
    """Return a workflow by the name of its file; `on`, which YAML takes for a truth value, is left as it is."""
    require_module("yaml", "pip install '.[deploy]'")
    import yaml

    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


class Job:
    """A job, by the names of its workflow's file and its own."""

    def __init__(self, file: str, name: str) -> None:
        self.steps = workflow(file)["jobs"][name]["steps"]

    def run(self, folder: Path, *, python: Path | None = None, path: Path | None = None, **variables: str) -> str:
        """Run the steps that are commands, by bash as the runner does, and return their output.

        `python` is the interpreter, as if `actions/setup-python` had set it up; `path` is a folder whose programs come
        before all others. An expression such as `matrix.architecture` is looked up in `variables`, by this name.
        """
        before = [str(each) for each in (path, python and python.parent) if each]
        known = {"PATH": os.pathsep.join([*before, os.environ["PATH"]]), **variables}
        output = ""
        for step in self.steps:
            if "run" in step:
                own = {
                    name: _EXPRESSION.sub(lambda found: variables[found[1]], text)
                    for name, text in step.get("env", {}).items()
                }
                done = subprocess.run(
                    ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                    cwd=folder,
                    env=os.environ | known | own,
                    capture_output=True,
                    text=True,
                    timeout=STEP_S,
                    check=False,
                )
                assert done.returncode == 0, f"{step['name']}: {done.stdout}{done.stderr}"
                output += done.stdout
        return output
