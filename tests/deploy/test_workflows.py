"""The workflows for the repository's host: their linters, their rights, and what their steps do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from deploy.workflows import FOLDER, Job, workflow
from support.programs import require_module, require_program, require_wheel
from support.readme import ROOT

FILES = sorted(path.name for path in FOLDER.iterdir())
RIGHTS = {
    ("release.yml", "image"): {"contents": "read", "packages": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
    ("release.yml", "announce"): {"contents": "write", "packages": "write"},
    ("pages.yml", "deploy"): {"pages": "write", "id-token": "write"},
}
"""The jobs that may do more than read the repository, and what."""

RECORDER = """#!/bin/sh
printf '%s' "${0##*/}" >> "$RECORDED"
for each in "$@"; do printf ' %s' "$each" >> "$RECORDED"; done
echo >> "$RECORDED"
"""
"""A program that writes down its name and arguments: for docker and gh, which would publish something."""


@pytest.fixture
def recorded(tmp_path):
    """A folder with stand-ins for docker and gh, the file in which they record calls, and files to publish."""
    (tmp_path / "programs").mkdir()
    for name in ("docker", "gh"):
        (tmp_path / "programs" / name).write_text(RECORDER)
        (tmp_path / "programs" / name).chmod(0o755)
    (tmp_path / "dist").mkdir()
    for name in ("halley-1.0.0.tar.gz", "halley-1.0.0.cdx.json"):
        (tmp_path / "dist" / name).touch()

    def run(job, tag, **variables):
        (tmp_path / "calls").write_text("")
        runner = {"GITHUB_REF_NAME": tag, "GITHUB_REPOSITORY": "Owner/Halley", "GITHUB_ACTOR": "ada"}
        known = {"secrets.GITHUB_TOKEN": "secret", "github.repository": "Owner/Halley", **runner, **variables}
        job.run(tmp_path, path=tmp_path / "programs", RECORDED=str(tmp_path / "calls"), **known)
        return (tmp_path / "calls").read_text().splitlines()

    return run


def lines(name):
    return (FOLDER / name).read_text().splitlines()


def ended(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
def test_actionlint_finds_nothing():
    """Expressions, contexts, inputs of actions, and the shell scripts where shellcheck is there too."""
    assert ended(require_program("actionlint"), *(FOLDER / name for name in FILES)) == (0, "")


@pytest.mark.slow
def test_zizmor_finds_nothing():
    """Nothing of weight: templates in scripts, credentials that stay, rights that nobody needs, actions by tags."""
    linter = require_wheel("zizmor", "pip install '.[release]'")
    code, output = ended(linter, "--offline", "--no-progress", "--min-severity", "medium", ROOT / ".github")
    assert code == 0, output


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*FILES, "../dependabot.yml"])
def test_it_follows_the_schema(name):
    require_module("check_jsonschema", "pip install '.[release]'")
    schema = "vendor.dependabot" if "dependabot" in name else "vendor.github-workflows"
    code, output = ended(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, FOLDER / name)
    assert code == 0, output


@pytest.mark.parametrize("name", FILES)
def test_actions_are_pinned(name):
    """Each action is named by a commit, with its version for readers; two places name the same commit."""
    used = [line.partition("uses: ")[2] for line in lines(name) if "uses: " in line]
    foreign = [each for each in used if not each.startswith("./")]
    assert foreign or name == "tests.yml"
    for each in foreign:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each
    everywhere = {line.partition("uses: ")[2] for file in FILES for line in lines(file) if "uses: " in line}
    assert len({each.partition("@")[0] for each in everywhere}) == len(everywhere)


@pytest.mark.parametrize("name", FILES)
def test_rights_are_the_least(name):
    """A workflow may read the repository, and a job only what the table allows it besides; each has a deadline."""
    parsed = workflow(name)
    assert parsed["permissions"] == {"contents": "read"}
    for job, content in parsed["jobs"].items():
        assert content.get("permissions") == RIGHTS.get((name, job)), job
        assert "uses" in content or content["timeout-minutes"] <= 120


def test_every_push_runs_all_checks():
    """The workflow's commands are `.ci/run`, and `.ci/pythons` for each version; a release waits for them too."""
    for job, command in (("tests", ".ci/run"), ("pythons", '.ci/pythons "$VERSION"')):
        assert [step["run"] for step in Job("tests.yml", job).steps if "run" in step] == [command]
        assert (ROOT / command.split()[0]).stat().st_mode & 0o100
    assert workflow("release.yml")["jobs"]["tests"]["uses"] == "./.github/workflows/tests.yml"


def test_nothing_is_published_before_all_is_tested_and_built():
    jobs = workflow("release.yml")["jobs"]
    assert {*jobs["publish"]["needs"]} == {*jobs} - {"publish", "announce"}
    assert jobs["announce"]["needs"] == "publish"
    assert jobs["publish"]["environment"] == "pypi"


def test_what_is_uploaded_to_the_package_index_is_distributions():
    """The SBOM is not among it, which the index would refuse."""
    jobs = workflow("release.yml")["jobs"]
    (download,) = [step["with"]["pattern"] for step in jobs["publish"]["steps"] if "download-artifact" in step["uses"]]
    uploads = {
        step["with"]["name"]: step["with"]["path"].split()
        for job in jobs.values()
        for step in job.get("steps", [])
        if "upload-artifact" in step.get("uses", "")
    }
    assert download == "distributions-*"
    taken = [path for name, paths in uploads.items() if name.startswith("distributions-") for path in paths]
    assert {*taken} == {"dist/*.whl", "dist/*.tar.gz"}
    assert uploads["sbom"] == ["dist/*.cdx.json"]


def test_the_images_of_both_architectures_are_joined(recorded):
    """What one job pushes for each architecture, another joins under the version and as the latest."""
    pushed = []
    for each in workflow("release.yml")["jobs"]["image"]["strategy"]["matrix"]["include"]:
        calls = recorded(Job("release.yml", "image"), "v1.0.0", **{"matrix.architecture": each["architecture"]})
        assert calls[:2] == ["docker login ghcr.io --username ada --password-stdin", "docker buildx create --use"]
        (tag,) = re.findall(r"--tag (\S+)", calls[2])
        (file,) = re.findall(r"--file (\S+)", calls[2])
        assert (ROOT / file).is_file()
        assert calls[2].startswith("docker buildx build ")
        assert calls[2].endswith(" .")
        pushed.append(tag)
    assert pushed == ["ghcr.io/owner/halley:1.0.0-amd64", "ghcr.io/owner/halley:1.0.0-arm64"]
    calls = recorded(Job("release.yml", "announce"), "v1.0.0")
    joined = "--tag ghcr.io/owner/halley:1.0.0 --tag ghcr.io/owner/halley:latest"
    assert f"docker buildx imagetools create {joined} {' '.join(pushed)}" in calls


@pytest.mark.parametrize(("tag", "kind"), [("v1.0.0", ""), ("v1.0.0rc1", "--prerelease ")])
def test_the_release_of_the_repository_has_every_file(tag, kind, recorded):
    """The distributions and the SBOM; a candidate is marked as one."""
    (release,) = [each for each in recorded(Job("release.yml", "announce"), tag) if each.startswith("gh ")]
    assert release.startswith(f"gh release create {tag} --verify-tag --title Halley {tag[1:]} ")
    assert release.endswith(f" {kind}dist/halley-1.0.0.cdx.json dist/halley-1.0.0.tar.gz")
    assert ("--prerelease" in release) == bool(kind)


@pytest.mark.slow
def test_compiled_wheels_are_for_each_python():
    """`cibuildwheel`, as it is set up, makes a wheel for each Python that has one, on both architectures."""
    program = require_wheel("cibuildwheel", "pip install '.[release]'")
    (command,) = [step["run"] for step in Job("release.yml", "wheels").steps if step.get("name") == "Compiled wheels"]
    words = command.split()
    assert (words[0], words[-2:]) == ("cibuildwheel", ["--output-dir", "dist"])
    for architecture in ("x86_64", "aarch64"):
        options = ("--print-build-identifiers", "--archs", architecture)
        code, output = ended(program, *words[1:-2], *options)
        assert code == 0, output
        assert output.split() == [f"cp3{minor}-manylinux_{architecture}" for minor in (11, 12, 13)]


@pytest.mark.nightly
def test_the_site_is_built_by_its_command(tmp_path):
    """The command of the workflow, which leaves the site where the upload takes it from."""
    require_module("material", "pip install '.[site]'")
    job = Job("pages.yml", "build")
    commands = [step["run"] for step in job.steps if "run" in step]
    (upload,) = [step["with"]["path"] for step in job.steps if "upload-pages-artifact" in step.get("uses", "")]
    assert commands[0] == "python -m pip install '.[site]'"
    words = commands[1].split()
    code, output = ended(sys.executable, "-m", *words, "--site-dir", tmp_path)
    assert code == 0, output
    import yaml

    site = next(
        line for line in (ROOT / "deploy/site/mkdocs.yml").read_text().splitlines() if line.startswith("site_dir:")
    )
    assert (ROOT / "deploy/site" / yaml.safe_load(site)["site_dir"]).resolve() == ROOT / upload
