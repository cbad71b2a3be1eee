"""Hatchling's build hook that compiles the hot modules, if `HALLEY_COMPILE=1` is set; else it does nothing.

mypyc makes C of the modules that `pyproject.toml` names, and setuptools calls the compiler. The wheel has both the
extension modules, which Python prefers, and their sources, whose lines tracebacks name. mypyc needs the types of the
libraries that Halley uses, so these are installed for the build as well.
"""  # noqa: INP001 - hatchling loads this file by its path

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILERS = ["mypy==2.4.1", "setuptools>=77"]
"""A release of mypyc is a compiler of its own: another one is taken when the tests have passed with it."""

_GROUP = "halley"
"""The code of all modules is in one library, `halley__mypyc`; so calls between them need no look-up."""


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel.

    `modules` are their paths from `app/`, as patterns, and `pure` those to leave out.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._folder = ""

    def dependencies(self) -> list[str]:
        """What the build needs."""
        return [*_COMPILERS, *self.metadata.core.dependencies] if _is_asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together."""
        if not _is_asked_for():
            return
        if version == "editable":
            self.app.display_warning("HALLEY_COMPILE has no effect on an editable installation.")
            return
        missing = _missing()
        if missing:
            self.app.abort(
                f"HALLEY_COMPILE=1 asks for compiled modules, but there is no {missing}. Install a C compiler and the "
                "headers of Python (on Debian: gcc, libc6-dev and python3-dev), or install without the variable: "
                "Halley does not depend on being compiled."
            )
        self._folder = tempfile.mkdtemp(prefix="halley-compiled-")
        build_data["pure_python"], build_data["infer_tag"] = False, True
        try:
            with chdir(Path(self.root, "app")):  # by the paths from here modules are named, and files in tracebacks
                found = {path for pattern in self.config["modules"] for path in Path().glob(pattern)}
                modules = sorted(str(path) for path in found if path.name != "__init__.py")
                extensions = _compile([path for path in modules if path not in self.config["pure"]], Path(self._folder))
        except BaseException:  # then nobody calls `finalize`
            shutil.rmtree(self._folder)
            raise
        for extension in extensions:
            inside = extension.relative_to(Path(self._folder, "built"))
            build_data["force_include"][str(extension)] = str(inside)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Delete the temporary files, when the wheel is complete."""
        if self._folder:
            shutil.rmtree(self._folder)


def _is_asked_for() -> bool:
    return os.environ.get("HALLEY_COMPILE", "") not in ("", "0")


def _missing() -> str:
    """What a build needs and the machine does not have; empty if it has all."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"C compiler ({compiler})"
    return "" if Path(sysconfig.get_path("include"), "Python.h").exists() else "Python.h"


def _throw_one_argument(runtime: Path) -> None:
    """Have coroutines pass on exceptions, cancellations among them, as `throw(value)`.

    mypyc's runtime calls `throw(type, value, traceback)`, which is deprecated since Python 3.12: with `-W default` each
    cancellation causes a warning, with `-W error` it is lost.
    """
    deprecated, text = "(_m, type, value, traceback, NULL)", runtime.read_text(encoding="utf-8")
    if text.count(deprecated) != 1:
        raise RuntimeError(f"{_COMPILERS[0]} does not have the call of `throw` that is replaced here")
    runtime.write_text(text.replace(deprecated, "(_m, value, NULL)"), encoding="utf-8")


def _compile(modules: list[str], folder: Path) -> list[Path]:
    """Compile modules, given by paths from the working directory; return the libraries, below `folder / "built"`."""
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    # Whether types are right is checked by the tests, more strictly; here they only have to be known.
    checks = ["--config-file=", "--explicit-package-bases", "--ignore-missing-imports", "--follow-imports=silent"]
    extensions = mypycify(
        [*checks, f"--cache-dir={folder / 'types'}", *modules],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        target_dir=str(folder / "c"),
        group_name=_GROUP,
    )
    _throw_one_argument(folder / "c" / "misc_ops.c")

    class BuildInParallel(build_ext):
        """Compiles the files of an extension side by side; setuptools can do so with extensions only."""

        def build_extension(self, ext: Extension) -> None:
            def compile_one(source: str) -> list[str]:
                arguments = {"include_dirs": ext.include_dirs, "extra_postargs": ext.extra_compile_args}
                objects: list[str] = self.compiler.compile([source], output_dir=self.build_temp, **arguments)
                return objects

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                compiled = list(pool.map(compile_one, ext.sources))
            ext.sources, ext.extra_objects = [], [each for objects in compiled for each in objects]
            super().build_extension(ext)

    command = BuildInParallel(Distribution({"name": _GROUP, "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "built"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    return [path for path in (folder / "built").rglob("*") if path.is_file()]
