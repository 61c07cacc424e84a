"""What tests of the command line have: a store of their own, and the command called as the console script calls it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taskqueue.cli import main
from taskqueue.store import Store
from taskqueue.store.open import open_store


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command line said, and how it left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What ``--json`` wrote."""
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on stderr."""
        [line] = self.err.splitlines()
        return line


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    url = f"sqlite://{tmp_path}/jobs.db"
    open_store(url).close()
    return url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Open the store behind the command's back."""
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def taskqueue(url: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Call ``taskqueue`` on the store."""

    def call(*arguments: str) -> Answer:
        code = main.main(["--url", url, *arguments])
        said = capsys.readouterr()
        return Answer(code=code, out=said.out, err=said.err)

    return call


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Undo what the test configures."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before, level
