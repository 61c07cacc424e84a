"""Real shells complete what is typed: bash and zsh at a terminal, fish by its own command."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from taskqueue.store import Store
from tests.cli import records
from tests.nodes import LIMIT

STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "bind 'set bell-style none'"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D; unsetopt zle_bracketed_paste prompt_sp"),
}
"""How a shell is started without files of the user, and what its user would have in them."""

READY = "shell-is-ready"


class Terminal:
    """A shell at a terminal of 80 columns."""

    def __init__(self, shell: str, url: str, folder: Path) -> None:
        command, prelude = STARTS[shell]
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment(url, folder))
        self._pid = pid
        self._seen = ""
        self.type(f"PS1='> '; {prelude}; eval \"$(taskqueue completion {shell})\"; echo {READY[:5]}''{READY[5:]}\n")
        self.heed(READY)

    def type(self, keys: str) -> None:
        """Type these keys."""
        self._seen = ""
        os.write(self._terminal, keys.encode())

    def heed(self, wanted: str) -> str:
        """Wait until the terminal shows this after what was typed, and return all that it has shown since."""
        ends_at = time.monotonic() + LIMIT
        while wanted not in self._seen:
            assert time.monotonic() < ends_at, f"{wanted!r} is not in {self._seen!r}"
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._seen += os.read(self._terminal, 65536).decode(errors="replace")
        return self._seen

    def close(self) -> None:
        """End the shell."""
        os.close(self._terminal)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def environment(url: str, folder: Path) -> dict[str, str]:
    """Return the variables of somebody who has the commands on the path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(folder), "TERM": "dumb", "COLUMNS": "80", "TASKQUEUE_URL": url}
    return {**os.environ, **own}


@pytest.fixture(params=STARTS)
def terminal(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(request.param, url, tmp_path)
    yield terminal
    terminal.close()


def test_a_shell_completes_commands_options_and_names_of_the_store(store: Store, terminal: Terminal) -> None:
    [job] = store.add([records.record(queue="postcards")])

    terminal.type("taskqueue analy\t")
    terminal.heed("taskqueue analytics ")
    terminal.type("--jso\t")
    terminal.heed("--json ")
    terminal.type(f"\x15taskqueue show {str(job.id)[:6]}\t")
    terminal.heed(str(job.id))
    terminal.type("\x15taskqueue pause post\t")
    terminal.heed("pause postcards ")
    for typed in ("shop", "shop.mail:", "shop.mail:Mail", "'shop.mail:M"):
        terminal.type(f"\x15taskqueue list --job {typed}\t")
        shown = terminal.heed("MailJob")
        assert shown.count("shop.mail") == 1, shown


def test_fish_completes_the_same(url: str, store: Store, tmp_path: Path) -> None:
    [job] = store.add([records.record(queue="postcards")])
    asked = {"taskqueue analy": "analytics", "taskqueue list --jso": "--json"}
    asked |= {f"taskqueue show {str(job.id)[:6]}": str(job.id), "taskqueue pause post": "postcards"}
    script = "taskqueue completion fish | source\n"
    script += "".join(f"complete --do-complete {shlex.quote(line)}\n" for line in asked)
    done = subprocess.run(
        ["fish", "--no-config", "--private"],
        input=script,
        cwd=tmp_path,
        env=environment(url, tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert done.stderr == ""
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == list(asked.values())
