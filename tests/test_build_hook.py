"""What `HALLEY_COMPILE=1 pip install .` says where it cannot compile; hatchling itself is only there during a build."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

HOOK = Path(__file__).parents[1] / "deploy/compiled.py"
INTERFACE = "hatchling.builders.hooks.plugin.interface"


class Aborted(Exception):
    """Raised in place of what hatchling's `abort` does: it ends the build with a text."""


class BuildHookInterface:
    """The part of hatchling's class that the hook uses."""

    def __class_getitem__(cls, _):
        return cls

    def __init__(self, root):
        self.root, self.config = root, {"modules": [], "pure": []}
        self.metadata = SimpleNamespace(core=SimpleNamespace(dependencies=["orjson"]))
        self.warnings = []
        self.app = SimpleNamespace(display_warning=self.warnings.append, abort=self.abort)

    def abort(self, text):
        raise Aborted(text)


@pytest.fixture
def module(monkeypatch):
    """The hook's module, asked to compile."""
    parts = INTERFACE.split(".")
    for n in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:n]), ModuleType(".".join(parts[:n])))
    sys.modules[INTERFACE].BuildHookInterface = BuildHookInterface
    monkeypatch.setenv("HALLEY_COMPILE", "1")
    spec = importlib.util.spec_from_file_location("build_hook", HOOK)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_without_a_compiler(module, monkeypatch, tmp_path):
    """The build ends, and says which compiler is missing and what to install."""
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(Aborted, match=r"there is no C compiler \(no-such-compiler\)\. Install .*python3-dev"):
        module.CompiledModules(tmp_path).initialize("standard", {})


def test_without_the_headers_of_python(module, monkeypatch, tmp_path):
    """The same without Python.h."""
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(module.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(Aborted, match=r"there is no Python\.h\. Install "):
        module.CompiledModules(tmp_path).initialize("standard", {})


def test_a_compilation_that_fails_leaves_nothing_behind(module, monkeypatch, tmp_path):
    """The folder with the C files is deleted, as nobody is told to finish then."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(folder))
    monkeypatch.setattr(module, "_missing", lambda: "")
    (tmp_path / "app").mkdir()

    def fail(modules, place):
        (place / "c").mkdir()
        raise OSError("cc failed")

    monkeypatch.setattr(module, "_compile", fail)
    with pytest.raises(OSError, match="cc failed"):
        module.CompiledModules(tmp_path).initialize("standard", {})
    assert [*folder.iterdir()] == []


def test_an_editable_installation(module, tmp_path):
    """It is made without compiled modules, and a warning says so."""
    hook, data = module.CompiledModules(tmp_path), {}
    hook.initialize("editable", data)
    hook.finalize("editable", data, "")
    assert hook.warnings == ["HALLEY_COMPILE has no effect on an editable installation."]
    assert data == {}


@pytest.mark.parametrize("value", ["", "0"])
def test_who_does_not_ask(module, monkeypatch, tmp_path, value):
    """Nothing is compiled, and nothing is needed for it."""
    monkeypatch.setenv("HALLEY_COMPILE", value)
    hook, data = module.CompiledModules(tmp_path), {}
    hook.initialize("standard", data)
    assert (hook.dependencies(), hook.warnings, data) == ([], [], {})
