"""What the tests of Django projects share: a project in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.django.projects import Project
from tests.web.conftest import chromium

__all__ = ["chromium", "project"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project with one application and one model."""
    folder = tmp_path / "site"
    folder.mkdir()
    return Project(folder)
