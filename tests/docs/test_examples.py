"""The sample application works: its own tests pass, each of them, as its readers run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import BLOCK_LIMIT

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def test_the_tests_of_the_shop_pass(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "--basetemp", str(tmp_path / "tests")]
    counted_elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        command, cwd=EXAMPLES, env={**counted_elsewhere, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=BLOCK_LIMIT,
    )  # fmt: skip

    assert re.search(r"^55 passed in ", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_the_shop_is_as_small_as_its_page_says() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (EXAMPLES / "shop").glob("*.py"))

    assert 580 <= lines <= 620
