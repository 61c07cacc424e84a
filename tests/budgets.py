"""Holds what one job costs to budgets, in counts: times depend on machines. The numbers stand in ``budgets.toml``.

``python -m tests.budgets`` runs the tests that count, and prints each count beside its budget; ``--lower`` writes those
that are a tenth less, and leaves the others alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_suffix(".toml")
TESTS = (
    "tests/test_budgets.py",
    "tests/scheduler/test_costs.py",
    "tests/daemon/test_costs.py",
    "tests/store/test_sqlite_statements.py",
    "tests/store/test_postgresql_message.py",
)

SLACK: Mapping[str, float] = {
    "functions": 0.15,
    "calls": 0.2,
    "statements": 0.15,
    "steps": 0.15,
    "commands": 0.15,
    "round_trips": 0,
    "system_calls": 0.25,
    "bytes": 0,
}
"""The share by which a count may exceed its budget: timers and pauses of the machine add some."""

LOWER = 0.9
"""The share of its budget below which a count is written: less may be chance."""

SEEN_BY: Mapping[str, str] = {
    "system_calls": "python -m benchmarks.system_calls",
    "bytes": "python -m benchmarks.one_job",
}
WAY = "python -m benchmarks.way_of_a_job"

COUNTS_TO = "BUDGET_COUNTS_TO"
"""The variable that names the file for the counts, while ``python -m tests.budgets`` runs the tests."""


def budget_of(name: str) -> float:
    """Return the budget of a name such as ``sqlite.node.calls``."""
    found: Any = tomllib.loads(FILE.read_text())
    for part in name.split("."):
        found = found[part]
    return float(found)


def keep(name: str, count: float, most: Iterable[tuple[str, float]] = ()) -> None:
    """Fail if the count exceeds its budget; ``most`` says what was counted most often."""
    if COUNTS_TO in os.environ:
        with open(os.environ[COUNTS_TO], "a") as file:
            file.write(json.dumps([name, count]) + "\n")
    kind = name.rpartition(".")[2]
    budget = budget_of(name)
    if count > budget * (1 + SLACK[kind]):
        raise AssertionError(
            f"{name}: {count:.1f} for a job, {budget:g} are budgeted (tests/{FILE.name}). To see the cause compare "
            f"`{SEEN_BY.get(kind, WAY)}` with main; raise the budget only for what is worth it."
            + "".join(f"\n  {number:7.2f} {what}" for what, number in most)
        )


def lowered(text: str, counts: Mapping[str, float]) -> str:
    """Return the file with the counts that are clearly below their budgets."""
    return "\n".join(_lowered(text.split("\n"), counts))


def _lowered(lines: Iterable[str], counts: Mapping[str, float]) -> Iterator[str]:
    section = ""
    for line in lines:
        if found := re.fullmatch(r"\[(.+)\]", line):
            section = found[1]
        elif found := re.fullmatch(r"(\w+) = (\d+)", line):
            count = counts.get(f"{section}.{found[1]}", math.inf)
            if count < LOWER * int(found[2]):
                yield f"{found[1]} = {math.ceil(count)}"
                continue
        yield line


def main() -> int:
    """Count, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "counts")
        file.touch()
        command = [sys.executable, "-m", "pytest", "-q", *TESTS]
        done = subprocess.run(command, env={**os.environ, COUNTS_TO: str(file)})
        counts: dict[str, float] = dict(map(json.loads, file.read_text().splitlines()))
    for name, count in counts.items():
        sys.stdout.write(f"{name:34} {count:10.1f} of {budget_of(name):g}\n")
    if given.lower:
        FILE.write_text(lowered(FILE.read_text(), counts))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
