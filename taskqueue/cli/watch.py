"""``--watch``: redraw a command's output every N seconds (in place on a terminal; q or Ctrl-C quits)."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import datetime, timezone
from types import FrameType

import click

from taskqueue.cli import output
from taskqueue.cli.param_types import duration
from taskqueue.errors import StoreUnavailable
from taskqueue.model.wording import local, span
from taskqueue.store.redaction import concealed_in

EVERY = "2"
"""Seconds between two redraws, unless the command line says otherwise."""

MOST_OFTEN = 1.0
"""The minimum number of seconds between two reads of the store or redraws of the terminal."""

# The alternate screen of a terminal, without a cursor, lines cut at the edge; and the sequences that undo all that.
_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = b"\x1b[?7h\x1b[?25h\x1b[?1049l"


def interval(value: str) -> float:
    """Return the seconds between two redraws that the command line names."""
    seconds = duration(value)
    if seconds < MOST_OFTEN:
        raise click.BadParameter(f"{value!r} is too frequent: write 1 second or more")
    return seconds


watch_option = click.option(
    "--watch", "every", type=interval, is_flag=False, flag_value=EVERY, metavar="[S]",
    help=f"Refresh the output every S seconds (without S: {EVERY}), until q or Ctrl-C.",
)  # fmt: skip


def repeat(draw: Callable[[], object], every: float, *, as_json: bool) -> None:
    """Call ``draw``, which prints the current state, every ``seconds``: in place on a terminal, until q is pressed.

    An outage of the store after the first call is shown, and does not end the command.
    """
    if as_json:
        raise click.UsageError("--watch is for people: for programs run the command with --json repeatedly")
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        _redraw(draw, every)
    else:
        _print_each(draw, every)


def _print_each(draw: Callable[[], object], every: float) -> None:
    """Print each state below its time, until Ctrl-C or until the output is closed."""
    shown = _printed(draw, io.StringIO())  # an error of the first draw ends the command
    while True:
        output.lines("\n".join([_now(), *shown, ""]))
        sys.stdout.flush()
        select.select((), (), (), every)
        try:
            shown = _printed(draw, io.StringIO())
        except StoreUnavailable as error:
            shown = []
            output.line(_sentence(error), err=True)


def _redraw(draw: Callable[[], object], every: float) -> None:
    """Show the current state on the terminal's alternate screen; the terminal's content is restored at the end."""
    from taskqueue.cli import terminal

    shown = _printed(draw, _Page())  # an error of the first draw is reported where the reader sees it after the command
    note = ""
    with _screen() as wait:
        while True:
            foot = note or f"{_now()}, every {span(every)}; q ends"
            _paint(shown, _printed(lambda: terminal.dim(foot), _Page()))  # noqa: B023 (called at once)
            if not wait(every):
                return
            try:
                shown, note = _printed(draw, _Page()), ""
            except StoreUnavailable as error:
                note = _sentence(error)


class _Page(io.StringIO):
    """Renders printed text as a terminal would: with its colours and its width."""

    def isatty(self) -> bool:
        return True


def _printed(draw: Callable[[], object], page: io.StringIO) -> list[str]:
    """Return the lines that ``draw`` prints onto the page."""
    with redirect_stdout(page):
        draw()
    return page.getvalue().splitlines()


def _paint(lines: list[str], foot: list[str]) -> None:
    """Write each screen over the previous one, which flickers less than clearing it first."""
    rows = os.get_terminal_size(sys.stdout.fileno()).lines - len(foot)
    if len(lines) > rows:
        lines = [*lines[: rows - 1], f"… {len(lines) - rows + 1} more lines"]
    screen = "\r\n".join(f"\x1b[K{line}" for line in [*lines, *foot])  # after a full line it would erase its end
    output.styled(f"\x1b[H{screen}\r\n\x1b[J" if len(lines) < rows else f"\x1b[H{screen}", nl=False)
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[Callable[[float], bool]]:
    """Take over the terminal; yield a function that waits for N seconds and returns whether to continue.

    The terminal is restored however the block ends, and while the command is stopped (Ctrl-Z).
    """
    keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    screen = sys.stdout.fileno()  # while a state is printed, sys.stdout is a page
    before = None if keys is None else termios.tcgetattr(keys)

    def enter() -> None:
        if keys is not None:
            tty.setcbreak(keys)
        os.write(screen, _ENTER)

    def leave() -> None:
        os.write(screen, _LEAVE)
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)

    def stop(_signum: int, _frame: FrameType | None) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    def end(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(
        {signal.SIGWINCH: lambda _signum, _frame: None, signal.SIGTSTP: stop, signal.SIGTERM: end}
    ) as signaled:
        enter()
        try:
            yield lambda every: _wait(every, signaled, keys)
        finally:
            leave()


@contextmanager
def _handled_by(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[int]:
    """Handle these signals in the block; the value is a descriptor that is readable once one has come.

    The system writes to it, even for a signal that comes just before a wait starts: a handler could not end that wait.
    """
    signaled, signaling = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    old = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    woken = signal.set_wakeup_fd(signaling, warn_on_full_buffer=False)
    try:
        yield signaled
    finally:
        signal.set_wakeup_fd(woken)
        for signum, handler in old.items():
            signal.signal(signum, handler)
        os.close(signaled)
        os.close(signaling)


def _wait(every: float, signaled: int, keys: int | None) -> bool:
    """Wait for the next redraw, for q, or for a resize, which is redrawn a moment later; return False for q."""
    began = time.monotonic()
    until = began + every
    while (remaining := until - time.monotonic()) > 0:
        ready, _, _ = select.select([signaled] if keys is None else [signaled, keys], (), (), remaining)
        if keys is not None and keys in ready and os.read(keys, 1) in (b"q", b"Q", b""):
            return False
        if signaled in ready:
            os.read(signaled, 4096)
            until = min(until, began + MOST_OFTEN)
    return True


def _now() -> str:
    return local(datetime.now(timezone.utc))


def _sentence(error: StoreUnavailable) -> str:
    """Return the error in one line, without a password."""
    return f"{_now()}: {concealed_in(' '.join(str(error).split()))}"
