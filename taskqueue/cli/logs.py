"""``taskqueue logs``: the log lines that are kept with a job and, with ``--follow``, new ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from taskqueue.cli import completion, ids, output
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.errors import WaitTimeout
from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import LogLine
from taskqueue.model.record import Record, Status
from taskqueue.model.wording import count
from taskqueue.scheduler import json_shapes

LOOKS_EVERY = 1.0
"""Seconds between two reads of new lines."""


@click.command("logs", short_help="Print the log lines of a job.")
@click.argument("id", metavar="ID", shell_complete=completion.ids)
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the job has ended.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Only lines of this attempt.")
@click.option("--lines", "-n", "most", type=click.IntRange(1), metavar="N", help="Start with the last N lines.")
@output.json_option("one JSON object per line")
@pass_store
def logs_command(
    context: StoreContext, id: str, follow: bool, attempt: int | None, most: int | None, as_json: bool
) -> None:
    """Print the log lines that are kept with a job, the oldest first.

    For each of its last 20 runs the last 200 lines are kept, 64 KiB at most, as long as the job is kept. Lines of a
    running job appear a few seconds late.
    """
    record = ids.resolve(context.store, id)
    printer = _Printer(as_json)
    lines = _lines(context, record.id, attempt)
    printer.print(lines if most is None else lines[-most:], lines)
    if not lines and not follow and not as_json:
        output.line(_nothing(record, attempt), err=True)
    for new in _following(context, record.id, attempt) if follow else ():
        printer.print(new, new)


def _lines(context: StoreContext, id: JobId, attempt: int | None) -> list[LogLine]:
    return [line for line in context.scheduler.logs(id) if attempt in (None, line.attempt)]


def _nothing(record: Record, attempt: int | None) -> str:
    """Explain why there are no lines, as far as the record shows."""
    if attempt is not None:
        return f"no lines of attempt {attempt} are kept"
    match record.status:
        case Status.PROCESSING:
            return "no lines yet: lines of a running job appear a few seconds late; --follow waits for them"
        case status if status.is_pending and not record.attempts:
            return "no lines yet: the job has not started; --follow waits for them"
    return "no lines: its runs logged nothing"


def _following(context: StoreContext, id: JobId, attempt: int | None) -> Iterator[list[LogLine]]:
    """Yield the kept lines repeatedly, for the last time after the job has ended."""
    process = context.scheduler.get_job(id)
    while not process.is_final:
        try:
            process.wait(timeout=LOOKS_EVERY)
        except WaitTimeout:
            process.refresh()
        yield _lines(context, id, attempt)


class _Printer:
    """Prints each line once, under the attempt of its run."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._run = -1
        self._last = (-1, 0)

    def print(self, lines: Sequence[LogLine], all_lines: Sequence[LogLine]) -> None:
        """Print the lines that are newer than those printed before; ``known`` are then printed or left out."""
        for line in lines:
            if (line.run, line.number) <= self._last:
                continue
            if self._as_json:
                output.json_line(output.json_text(json_shapes.log_line(line)))
            else:
                self._print(line)
            self._last = (line.run, line.number)
        if all_lines:
            self._last = max(self._last, (all_lines[-1].run, all_lines[-1].number))

    def _print(self, line: LogLine) -> None:
        from taskqueue.cli import terminal

        expected = self._last[1] + 1 if line.run == self._last[0] else 1
        if line.run != self._run:
            self._run = line.run
            terminal.dim(f"attempt {line.attempt}, {line.at.astimezone():%Y-%m-%d %Z}")
        if line.number > expected:
            terminal.dim(f"… {count(line.number - expected, 'line')} before this one")
        terminal.log_line(_time(line.at), line.level, line.message)


def _time(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}.{at.microsecond // 1000:03}"
