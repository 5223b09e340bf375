"""The image, as far as it can be made without a container engine: the Dockerfile's own steps, in another directory."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from stat import S_ISREG

import pytest
from packaging.requirements import Requirement

from deploy.generate import program
from mig_manager import __version__
from tests.daemon.node import ROOT
from tests.requirements import need

DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCKS = {name: ROOT / f"deploy/image/{name}.lock" for name in ("requirements", "build")}
PLATFORMS = ("x86_64", "aarch64")
PYTHON = "3.13"
"""Of the base image."""


def instructions(kind: str) -> list[str]:
    """The instructions of one kind, in order, their lines joined."""
    plain = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return re.findall(rf"^{kind} +(.*)$", plain, re.MULTILINE)


def pinned(lock: Path) -> dict[str, str]:
    """Version by name, of what is installed on Linux."""
    found = {}
    for line in re.findall(r"^\S.*$", lock.read_text(), re.MULTILINE):
        if not line.startswith("#"):
            requirement = Requirement(line.rstrip("\\").strip())
            if requirement.marker is None or requirement.marker.evaluate({"sys_platform": "linux"}):
                (specifier,) = requirement.specifier
                found[requirement.name] = specifier.version
    return found


@cache
def package_index() -> bool:
    """Whether uv reaches the index that it is set up with."""
    command = [program("uv"), "pip", "compile", "--quiet", "--python", sys.executable, "--no-deps", "-"]
    return not subprocess.run(command, input=b"jeepney", capture_output=True, check=False).returncode


def wheels(*options: str, lock: str = "requirements") -> dict[str, dict[str, str]]:
    """Every wheel of what is locked that the index has and that fits: its URL by its hash, by package."""
    command = [
        program("uv"),
        "pip",
        "compile",
        "--quiet",
        "--python",
        sys.executable,
        "--only-binary",
        ":all:",
    ]
    command += ["--no-deps", "--format", "pylock.toml", *options, str(LOCKS[lock])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {
        each["name"]: {wheel["hashes"]["sha256"]: wheel["url"] for wheel in each["wheels"]}
        for each in tomllib.loads(done.stdout)["packages"]
    }


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/opt/mig-manager, made by the Dockerfile's steps: once for all processes that share the tests."""
    need("package-index", package_index())
    base = tmp_path_factory.getbasetemp()
    here = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "image"
    here.mkdir(exist_ok=True)
    made = here / "made"
    with (here / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(here)
            made.touch()
    return here / "opt/mig-manager"


def make(here: Path) -> None:
    source = here / "src"
    source.mkdir()
    for pattern in (ROOT / ".dockerignore").read_text().split():
        if pattern.startswith("!"):
            for path in ROOT.glob(pattern[1:]):
                target = source / (path.name if path.suffix == ".lock" else path.relative_to(ROOT))
                if path.is_dir():
                    shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(path, target)
    bin_ = here / "bin"
    bin_.mkdir()
    for name, arguments in (("python", ""), ("pip", "-m pip")):
        script = bin_ / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        script.chmod(0o755)
    # Of every package, pip would read of each file that there ever was: it gets a page of those that are locked.
    page = here / "page.html"
    page.write_text(
        "".join(
            f'<a href="{url}#sha256={digest}">{PurePosixPath(url).name}</a>\n'
            for lock in LOCKS
            for files in wheels(lock=lock).values()
            for digest, url in files.items()
        )
    )
    environment = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(page),
    }
    environment.pop("PYTHONPATH", None)
    for step in instructions("RUN"):
        command = step.replace("/opt/", f"{here}/opt/")
        done = subprocess.run(
            ["sh", "-euc", command], cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def installed(prefix: Path) -> Iterable[Distribution]:
    (site,) = prefix.glob("lib/python3.*/site-packages")
    return distributions(path=[str(site)])


def run(prefix: Path, *command: str) -> str:
    """As in the container: with its PATH, where nothing can be written."""
    environment = {
        "PATH": f"{prefix}/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/nonexistent",
    }
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_steps_give_what_is_locked_and_nothing_else(prefix: Path) -> None:
    found = {each.name.replace("_", "-").lower(): each.version for each in installed(prefix)}
    assert found.pop("mig-manager") == __version__
    assert found == pinned(LOCKS["requirements"])
    assert not {"pip", "setuptools", "pytest", "mypy", "ruff"} & set(found)


def test_it_is_no_larger_than_the_readme_says(prefix: Path) -> None:
    (said,) = re.findall(
        r"^\| what the image adds .*? \| (\d+) MiB", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    files = [path.lstat() for path in prefix.rglob("*")]
    assert sum(each.st_size for each in files if S_ISREG(each.st_mode)) / 2**20 < int(said) + 4


def test_the_entry_points_run(prefix: Path) -> None:
    (entry,) = instructions("ENTRYPOINT")
    assert json.loads(entry) == ["nvidia-mig-manager"]
    assert "MIG_MANAGER_DRAIN_MODE" in run(prefix, "nvidia-mig-manager", "--help")
    assert run(prefix, "nvidia-mig-manager", "--version").split() == ["mig-manager", __version__]
    assert "1g.10gb" in run(
        prefix, "mig-manager", "plan", "--simulate", "A100-SXM4-80GB", "-c", "all-1g.10gb"
    )
    assert "/bin/sh" in run(prefix, "sh", "-c", "command -v /bin/sh")


def test_every_import_resolves(prefix: Path) -> None:
    script = (
        "import importlib, pkgutil, mig_manager, grpc, watchfiles, kubernetes.config, kubernetes.utils.quantity\n"
        "for each in pkgutil.walk_packages(mig_manager.__path__, 'mig_manager.'):\n"
        "    if 'simulation' not in each.name and '.play' not in each.name and '__main__' not in each.name:\n"
        "        importlib.import_module(each.name)\n"
    )
    run(prefix, "python", "-c", script)


def test_bytecode_is_there_for_what_the_daemon_loads(prefix: Path) -> None:
    script = (
        "import sys, mig_manager.daemon.main\n"
        "for each in list(sys.modules.values()):\n"
        "    if getattr(each, '__cached__', None):\n"
        "        print(each.__cached__)\n"
    )
    loaded = [each for each in run(prefix, "python", "-c", script).split() if str(prefix) in each]
    assert len(loaded) > 100
    assert [each for each in loaded if not Path(each).is_file()] == []


def test_the_lock_is_of_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for lock, wanted in (
        ("requirements", project["project"]["dependencies"]),
        ("build", project["build-system"]["requires"]),
    ):
        locked = pinned(LOCKS[lock])
        for requirement in map(Requirement, wanted):
            assert requirement.specifier.contains(locked[requirement.name]), f"{requirement}: make lock"


def entries(lock: Path) -> dict[str, str]:
    """Each package with the hashes of its files."""
    found = re.split(r"^(?=[a-z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]
    return {each.partition("==")[0]: each for each in found}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=lambda path: path.stem)
def test_a_lock_names_files_by_their_hashes_and_no_place(lock: Path) -> None:
    assert [name for name, entry in entries(lock).items() if "--hash=sha256:" not in entry] == []
    assert not re.search(r"https?:|file:|--index|--find-links|--extra|(^|[\s=])/", lock.read_text())


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_architecture_has_a_wheel_of_everything(platform: str) -> None:
    need("package-index", package_index())
    found = wheels("--python-version", PYTHON, "--python-platform", f"{platform}-manylinux_2_28")
    assert set(found) == set(pinned(LOCKS["requirements"]))
    locked = entries(LOCKS["requirements"])
    assert [name for name, files in found.items() if not any(each in locked[name] for each in files)] == []
    urls = [url for files in found.values() for url in files.values()]
    assert any(each.endswith(f"_{platform}.whl") for each in urls)
    assert all(each.endswith(("-none-any.whl", f"_{platform}.whl")) for each in urls)


def test_the_dockerfile_is_lint_clean() -> None:
    done = subprocess.run(
        [program("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_says_what_it_is_and_runs_without_a_shell_in_between() -> None:
    assert f"VERSION={__version__}" in instructions("ARG")
    assert all(step.startswith(("python -m venv", "PYTHONPATH=")) for step in instructions("RUN"))
    ((path),) = re.findall(r"PATH=(\S+)", instructions("ENV")[0])
    assert path.startswith("/opt/mig-manager/bin:")
    *_, final = DOCKERFILE.split("FROM ")
    assert "RUN" not in final
    assert len(re.findall(r"^FROM \$\{BASE\}", DOCKERFILE, re.MULTILINE)) == 2
    (base,) = (each for each in instructions("ARG") if each.startswith("BASE="))
    assert re.fullmatch(rf"BASE=python:{PYTHON}-slim-[a-z]+", base)
