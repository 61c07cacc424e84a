"""Run the acceptance tests on each supported Python of this machine, with the newest dependencies and with the lowest.

A script: ``bin/test --pythons`` starts it, ``bin/test --all --pythons`` beside all other tests. Each pair of a Python
and a set of versions has an environment of its own, ``.venv-3.10-lowest``, made anew when ``setup.cfg`` changes. The
lowest versions are those that ``setup.cfg`` names. Environments with the most tests come first.

=============  =================  ======================================================
Python         versions           tests
=============  =================  ======================================================
oldest         lowest             all, but those of the extras
oldest         newest             those of the packages, and those of the extras
newest         newest             all; before an unstable one, those of the packages and
                                  those on MongoDB
each between   newest             those of the packages, on SQLite
newest         lowest             those of the packages
unstable       newest             all, but those of MongoDB; before another unstable one,
                                  those of the packages, on SQLite
both ends      lowest of extras   those of the extras
=============  =================  ======================================================

The Python of ``.venv`` has run the whole suite with the newest versions. The oldest Python runs every test with the
lowest versions, the newest Python with the newest versions. The opposite pairs can fail only in a package that does not
work with this Python, so they run the files that call every function of a package which the tests on MongoDB call. The
tests of the embedded store, which is Python's own SQLite, call no others. Pythons between run the same files on that
store: what they lack, the oldest lacks too, and what they removed, the newest lacks. An *unstable* Python is one that
only Debian's unstable distribution has: its tests run inside that, where a warning is an error, see
``tests/unstable.py``. The last one is the newest of all, but there is no MongoDB in the distribution: the newest Python
of this machine keeps the tests on MongoDB.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from tests import unstable
from tests.servers import server_binary

ROOT = Path(__file__).parent.parent
TOOLS = ("hypothesis", "prometheus-client", "pytest", "pytest-xdist")  # of the tests, always the newest
EXTRAS = ("django", "otel", "top", "web")
OF_EXTRAS = "tests/acceptance/test_extras.py"
LEFT_OUT = ("test_quickstart.py", "test_secrets.py", "test_notification_mail.py")
"""They need the environment of the tests: its Python, a client, a mail server."""

HOW = ("-m", "not long", "-n", "3", "--dist", "loadfile")
ALL = ("tests/acceptance", *(f"--ignore=tests/acceptance/{name}" for name in LEFT_OUT), *HOW)
OF_PACKAGES = (
    *("test_concurrent.py", "test_damage.py", "test_declaring.py", "test_fair_order.py", "test_job_metrics.py"),
    *("test_leading.py", "test_limits.py", "test_log_lines.py", "test_mongodb_costs.py", "test_notifications.py"),
    *("test_outbox.py", "test_schedules.py", "test_stacks.py"),
)
"""They call every function of an installed package that any acceptance test on MongoDB calls, but for what only tests
use. To find them, the functions of all processes of each test were recorded with ``sys.monitoring``."""

FILES_OF_PACKAGES = (*(f"tests/acceptance/{name}" for name in OF_PACKAGES), *HOW)
PACKAGES = (*FILES_OF_PACKAGES, "-k", "not sqlite")
BETWEEN = (*FILES_OF_PACKAGES, "-k", "not mongodb")
NOT_MONGODB = (*ALL, "-k", "not mongodb")
MONGODB = (*ALL, "-k", " or ".join(["mongodb", *(name.removesuffix(".py") for name in OF_PACKAGES)]))
AT_ONCE = 3
"""Environments whose tests run at once, unless ``--at-once`` says another number."""

MADE_AT_ONCE = 2
Version = tuple[int, int]


class Environment(NamedTuple):
    """A Python with the lowest or the newest versions of what the project needs, and what is tested there.

    The lowest versions of the extras have an environment of their own: they need higher ones of other packages.
    """

    python: Path
    version: Version
    kind: Literal["lowest", "lowest-extras", "newest", "unstable"]
    tests: tuple[str, ...]
    """Arguments of pytest."""

    @property
    def name(self) -> str:
        """Return how it is called, such as ``3.12-lowest`` or ``3.12-lowest-extras``."""
        return f"{self.version[0]}.{self.version[1]}-{self.kind}"

    @property
    def place(self) -> int:
        """Return a number by which those are sorted that run all tests, those that run a part, and those of extras."""
        return 2 if self.tests == (OF_EXTRAS,) else 1 if "-k" in self.tests else 0

    @property
    def folder(self) -> Path:
        """Return where it is kept."""
        return ROOT / f".venv-{self.name}"


def configuration() -> configparser.ConfigParser:
    """Return what ``setup.cfg`` says."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def oldest_supported() -> Version:
    """Return the oldest Python that ``setup.cfg`` takes."""
    found = re.fullmatch(r">=(\d+)\.(\d+)", configuration()["options"]["python_requires"])
    assert found, "setup.cfg: python_requires is not of the form >=3.10"
    return int(found[1]), int(found[2])


def requirements() -> list[str]:
    """Return the requirements of ``setup.cfg`` and those of its extras."""
    parser = configuration()
    extras = [parser["options.extras_require"][extra] for extra in EXTRAS]
    return [line for lines in (parser["options"]["install_requires"], *extras) for line in lines.split("\n") if line]


def lowest_requirements(extras: bool = False) -> list[str]:
    """Return the requirements of ``setup.cfg``, or those of the extras, with each lower bound as the only version."""
    parser = configuration()
    of_extras = [parser["options.extras_require"][extra] for extra in EXTRAS]
    lines = "\n".join(of_extras) if extras else parser["options"]["install_requires"]
    return [line.replace(">=", "==") for line in lines.split("\n") if line]


def candidates() -> Iterator[Path]:
    """Yield every interpreter that may be a Python 3: those on the PATH, then those of pyenv."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield from sorted(Path(folder).glob("python3.*[0-9]"))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/3.*/bin/python3"))


def version_of(python: Path) -> Version | None:
    """Return the version of an interpreter that can make environments, or None if this one cannot."""
    question = "import sys, ensurepip, venv; print(*sys.version_info[:2], sys.implementation.name)"
    asked = subprocess.run([python, "-I", "-c", question], capture_output=True, text=True)
    match asked.stdout.split():
        case [major, minor, "cpython"] if asked.returncode == 0:
            return int(major), int(minor)
    return None


def pythons(found: Iterable[Path], oldest: Version) -> Mapping[Version, Path]:
    """Return the first interpreter found for each supported version, the oldest version first."""
    chosen: dict[Version, Path] = {}
    for python in found:
        version = version_of(python)
        if version is not None and version >= oldest:
            chosen.setdefault(version, python)
    return dict(sorted(chosen.items()))


def environments(found: Mapping[Version, Path], tested: Version, newest_of_all: Version) -> list[Environment]:
    """Return where to run which tests, as the table above says.

    ``tested`` is the Python of ``.venv``, ``newest_of_all`` the newest that runs tests, maybe an unstable one.
    """
    oldest, newest = min(found, default=tested), max(found, default=tested)
    of_the_newest = MONGODB if newest < newest_of_all else ALL
    of_newest = {**dict.fromkeys(found, BETWEEN), newest: of_the_newest, oldest: (OF_EXTRAS, *PACKAGES)}
    chosen = []
    for version, python in found.items():
        if version in (oldest, newest):
            tests = (*ALL, f"--ignore={OF_EXTRAS}") if version == oldest else PACKAGES
            chosen.append(Environment(python, version, "lowest", tests))
            chosen.append(Environment(python, version, "lowest-extras", (OF_EXTRAS,)))
        if version != tested:
            chosen.append(Environment(python, version, "newest", of_newest[version]))
    return chosen


def unstable_environments(found: Mapping[Version, Path]) -> list[Environment]:
    """Return those of the Pythons that this machine has only in Debian's unstable distribution."""
    interpreters = zip(unstable.VERSIONS, unstable.names(), strict=True)
    newest = max([*found, *unstable.VERSIONS])
    return [
        Environment(Path("/usr/bin", name), version, "unstable", NOT_MONGODB if version == newest else BETWEEN)
        for version, name in interpreters
        if version not in found
    ]


def make(environment: Environment) -> None:
    """Make the environment, unless it was made for what ``setup.cfg`` says now."""
    stamp = environment.folder / ".made-for"
    wanted = "\n".join([str(environment.folder), str(environment.python), *map(_digest, _sources())])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(environment.folder, ignore_errors=True)
    if environment.kind == "unstable":
        make_unstable(environment)
    else:
        make_here(environment)
    stamp.write_text(wanted)


def make_here(environment: Environment) -> None:
    """Make the environment of a Python of this machine."""
    subprocess.run([environment.python, "-m", "venv", "--without-pip", environment.folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment.folder / "bin/python"), "install", "-qq"]
    lowest = [] if environment.kind == "newest" else lowest_requirements(extras=environment.kind == "lowest-extras")
    project = str(ROOT) if environment.kind == "lowest" else f"{ROOT}[{','.join(EXTRAS)}]"
    subprocess.run([*pip, "--no-compile", "-e", project, *TOOLS, *lowest], check=True)


def make_unstable(environment: Environment) -> None:
    """Make the environment of a Python of the unstable distribution.

    The pip of this machine installs into it from outside, because nothing inside needs to reach the package registry.
    """
    unstable.make()
    venv = unstable.inside([str(environment.python), "-m", "venv", "--without-pip", str(environment.folder)])
    subprocess.run(venv, check=True)
    version = environment.python.name.removeprefix("python")
    packages = environment.folder / f"lib/{environment.python.name}/site-packages"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-compile", "--target", str(packages)]
    wheels = ["--python-version", version, "--only-binary=:all:"]
    subprocess.run([*pip, *wheels, *requirements(), *TOOLS], check=True)
    (packages / "taskqueue.pth").write_text(f"{ROOT}\n")
    for installed in Path(sys.executable).parent.glob("taskqueue*"):
        program = environment.folder / "bin" / installed.name
        lines = installed.read_text().splitlines(keepends=True)
        program.write_text("".join([f"#!{environment.folder}/bin/python\n", *lines[1:]]))
        program.chmod(0o755)


class Tested(NamedTuple):
    """How the tests ended in an environment, with what they printed."""

    passed: bool
    output: str
    waited: float
    """Seconds until the environment was made."""
    took: float


def tested(environment: Environment, making: Future[None], arguments: list[str]) -> Tested:
    """Run the tests of the environment, or what ``arguments`` name, once it is made."""
    begun = time.monotonic()
    making.result()
    made = time.monotonic()
    command = [str(environment.folder / "bin/python"), "-m", "pytest", "-q", *(arguments or environment.tests)]
    strict = {}
    if environment.kind == "unstable":
        command = unstable.inside(command)
        strict = {"PYTHONWARNINGS": "error"}  # in nodes, too: the newest Python shows no warning
    path = f"{server_binary().parent}{os.pathsep}{os.environ['PATH']}"  # one MongoDB server serves all environments
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PATH": path} | strict,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Tested(done.returncode == 0, done.stdout, made - begun, time.monotonic() - made)


def main(words: list[str]) -> int:
    """Run them all and return how many environments failed."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    given, arguments = parser.parse_known_args(words)
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    found = pythons(candidates(), oldest_supported())
    further = unstable_environments(found)
    if why_not := unstable.why_not():
        for environment in further:
            print(f"Python {environment.name} was not run: {why_not}", flush=True)
        further = []
    newest_of_all = max([*found, *(environment.version for environment in further)], default=sys.version_info[:2])
    here = environments(found, sys.version_info[:2], newest_of_all)
    chosen = sorted([*here, *further], key=lambda one: one.place)
    failed = []
    print(f"Pythons: {', '.join(one.name for one in chosen)}, {given.at_once} at once", flush=True)
    with ThreadPoolExecutor(MADE_AT_ONCE) as maker, ThreadPoolExecutor(given.at_once) as tester:
        makings = [maker.submit(make, one) for one in chosen]
        testing = [tester.submit(tested, *each, arguments) for each in zip(chosen, makings, strict=True)]
        for environment, running in zip(chosen, testing, strict=True):
            end = running.result()
            shown = end.output.rstrip().rpartition("\n")[2] if end.passed else end.output
            print(f"\n== Python {environment.name} ({environment.python})\n{shown}", flush=True)
            if not end.passed:
                failed.append(environment.name)
            print(f"{environment.name}: waited {end.waited:.0f} s for, tested in {end.took:.0f} s", flush=True)
    print(f"\nPythons: {len(found) + len(further)} found, {', '.join(failed) or 'none'} failed", flush=True)
    return len(failed) if found else 1


def _sources() -> tuple[Path, ...]:
    return ROOT / "setup.cfg", Path(__file__), Path(unstable.__file__)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
