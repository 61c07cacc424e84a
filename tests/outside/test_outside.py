"""What users and programs see is what was recorded: a name, a default or a field changes only on purpose."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.outside import record


@pytest.mark.parametrize("name", record.PARTS)
def test_the_outside_is_as_it_was_recorded(name: str, tmp_path: Path) -> None:
    recorded = record.file_of(name).read_text()

    assert recorded == record.text(name, tmp_path), "if this is meant: python -m tests.outside.record"


@pytest.mark.parametrize("name", record.PARTS)
def test_each_change_of_a_record_has_its_reason(name: str) -> None:
    digest = hashlib.sha256(record.file_of(name).read_bytes()).hexdigest()[:8]
    lines = record.REASONS.read_text().splitlines()

    assert any(line.startswith(f"- {name} {digest}: ") for line in lines), f"add to changes.md: - {name} {digest}: …"
