"""Do what a page of the documentation says: write its files, run its commands, compare what they print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskqueue.insight import control_socket
from tests.nodes import LIMIT, eventually

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
ANYTHING = "…"
BLOCK_LIMIT = 5 * LIMIT
"""Seconds that the commands of a block may take: some of them run files of tests."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block with the mark before it, if any.

    Marks are ``file: NAME``, ``environment``, ``background``, ``output`` (of the block before), ``not run: WHY``, and
    ``in: FILE`` for a part of a file of the repository.
    """

    mark: str
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    return blocks_of(page.read_text())


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page, or of a part of it, in order."""
    for found in BLOCK.finditer(text):
        yield Block(mark=found["mark"] or "", language=found["language"], text=found["text"])


class Reader:
    """Somebody who does what a page says, in a folder of their own with a store of their own.

    ``meanings`` are what the values of variables on the page stand for here.
    """

    def __init__(self, folder: Path, meanings: Mapping[str, str]) -> None:
        self.folder = folder
        self._meanings = meanings
        self.printed = ""
        self.prelude = ""  # what a shell does before each block
        self.started: list[subprocess.Popen[bytes]] = []
        counted_elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        self._environment = {
            **counted_elsewhere,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(folder / "state"),
            control_socket.VARIABLE: str(folder / "run"),  # a reader sees the nodes of this page alone
            "PYTHONPATH": str(Path.cwd()),
        }

    def follow(self, page: Sequence[Block]) -> None:
        """Do all of it."""
        for block in page:
            if block.mark.startswith("file: "):
                (self.folder / block.mark.removeprefix("file: ")).write_text(block.text)
            elif block.mark == "environment":
                for name, value in re.findall(r"^export (\w+)='(.*)'$", block.text, re.MULTILINE):
                    self._environment[name] = self._meanings.get(value, value)
            elif block.mark == "background":
                self._start(block.text)
            elif block.mark == "output":
                assert matches(block.text, self.printed), f"the page says\n{block.text}\nbut it was\n{self.printed}"
            elif block.language == "sh" and not block.mark.startswith("not run: "):
                self._run(block.text)

    def close(self) -> None:
        """End what was started, as Ctrl-C does, and expect it to end well, unless the page has killed it."""
        for started in self.started:
            started.send_signal(signal.SIGINT)
        try:
            assert {started.wait(LIMIT) for started in self.started} <= {0, -signal.SIGKILL}
        finally:
            for started in self.started:
                started.kill()

    def _start(self, command: str) -> None:
        log = self.folder / f"background-{len(self.started)}.log"
        with log.open("wb") as output:
            started = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(started)
        eventually(lambda: re.search("guarantee|dashboard at", log.read_text()) or started.poll() is not None)
        assert started.poll() is None, log.read_text()

    def _run(self, script: str) -> None:
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", self.prelude + script],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_LIMIT,
        )
        self.printed = done.stdout
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"


def matches(shown: str, printed: str) -> bool:
    """Return whether what a page shows is what was printed: ``…`` stands for anything, any spaces for any others."""
    parts = [r"\s+".join(re.escape(word) for word in part.split(" ")) for part in _tidy(shown).split(ANYTHING)]
    return re.fullmatch(".*".join(parts), _tidy(printed), re.DOTALL) is not None


def _tidy(text: str) -> str:
    return " ".join(text.split())
