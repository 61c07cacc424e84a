"""What several nodes do beside a bare queue is measured through the delay, and every job is settled once."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long


def test_each_size_has_a_row_with_both_systems_and_their_ratio() -> None:
    command = [sys.executable, "-m", "benchmarks.skip_locked", "--rounds", "1", "--nodes", "2", "--batches", "16"]

    done = subprocess.run([*command, "--delays", "0", "0.5"], capture_output=True, text=True, check=True)

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [row[:3] for row in rows] == [["0", "2", "16"], ["0.5", "2", "16"]]
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in row[3:])
