"""Planted faults are reported within a minute, and a normal day raises next to no findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.insight.shop_week import FAULTS, played


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_each_fault_of_a_shop_is_reported_within_a_minute_and_next_to_nothing_else(seed: int, tmp_path: Path) -> None:
    findings = played(seed, tmp_path, hours=13)

    assert findings.found_after.keys() == FAULTS.keys()
    assert {fault: after for fault, after in findings.found_after.items() if not 0 < after <= 60} == {}
    assert len(findings.false) <= 1, findings.false
