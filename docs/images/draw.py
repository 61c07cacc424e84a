"""Draw the README's picture from a real run: ``python docs/images/draw.py`` writes list.svg beside this file."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import shop
from rich.console import Console
from rich.text import Text

from taskqueue import Process, Scheduler, Status

HERE = Path(__file__).parent
COLUMNS = 104
LIMIT = 60


def main() -> None:
    """Run the shop's jobs with a node and take the picture."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/jobs.db"
        with node_of(url), Scheduler(url) as scheduler:
            bring_about(scheduler)
            shown = on_a_terminal(command("taskqueue.cli.main", "--url", url, "list"))
    draw(f"$ taskqueue list\n{shown}", title="taskqueue list", file=HERE / "list.svg")


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module."""
    return [sys.executable, "-m", module, *arguments]


@contextlib.contextmanager
def node_of(url: str) -> Iterator[None]:
    """Run a node that has the shop's jobs."""
    node = subprocess.Popen(
        command("taskqueue.cli.node", "--url", url, "--name", "web-1", "--chdir", str(HERE), "--max-children", "4"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        node.terminate()
        node.wait(LIMIT)


def bring_about(scheduler: Scheduler) -> None:
    """Add jobs and wait until each is where it shall be."""
    ended = [
        scheduler.add_job(shop.MailJob, {"to": "ann@example.org"}),
        scheduler.add_job(shop.ReportJob, {"percent": 60, "page": 12}, timeout=1),
        scheduler.add_job(shop.MailJob, {"to": "bob@example.invalid"}),
    ]
    scheduler.wait_for(ended, timeout=LIMIT)
    failing = scheduler.add_job(shop.StockJob)
    until(lambda: failing.refresh().status is Status.POSTPONED)
    scheduler.add_job(shop.BackupJob, at="+9 hours")
    scheduler.add_job(shop.ReportJob, {"percent": 10, "page": 2}, at="+1 hour").cancel("wrong month")
    for percent, page in ((85, 17), (45, 9)):
        running = scheduler.add_job(shop.ReportJob, {"percent": percent, "page": page})
        until(lambda running=running: has_told(running))
    scheduler.add_job(shop.MailJob, {"to": "eve@example.org"}).wait(timeout=LIMIT)


def has_told(process: Process) -> bool:
    """Tell whether the job's progress has reached the store."""
    return process.refresh().progress > 0


def until(fact) -> None:
    """Wait until it is so."""
    ends_at = time.monotonic() + LIMIT
    while not fact():
        if time.monotonic() > ends_at:
            raise TimeoutError("the picture's jobs do not get where they shall be")
        time.sleep(0.05)


def on_a_terminal(arguments: list[str]) -> str:
    """Return what the command prints on a terminal, colours included."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"} | {"COLUMNS": str(COLUMNS)}
    with subprocess.Popen(arguments, stdin=slave, stdout=slave, stderr=slave, env=environment) as shown:
        os.close(slave)
        parts = []
        try:
            while part := os.read(master, 65536):
                parts.append(part)
        except OSError:  # what a terminal says when nobody has it open any more
            pass
        os.close(master)
    if shown.returncode != 0:
        raise RuntimeError(b"".join(parts).decode())
    return b"".join(parts).decode().replace("\r\n", "\n").rstrip("\n")


def draw(shown: str, title: str, file: Path) -> None:
    """Write a picture of what a terminal has shown."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(Text.from_ansi(shown))
    picture = console.export_svg(title=title)
    # A page with this picture shall not make its readers fetch fonts from strangers: theirs will do.
    file.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))


if __name__ == "__main__":
    main()
