"""What structlog prints in a job is among its log lines: with its level, without escape sequences, as text or JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taskqueue import Scheduler
from taskqueue.execution.log_capture import ParsedLine, parsed, without_escapes
from taskqueue.model.log_lines import LogLine
from tests.nodes import LIMIT, node

SHOP = """
import sys

import structlog
from taskqueue import Job

log = structlog.get_logger()


class Order(Job):
    def start(self):
        print("a line of its own")
        log.debug("looks", at="shelf 3")
        log.warning("no label", order=self.data)
        log.error("cannot reach", server="http://ann:geheim@till/")
        try:
            raise LookupError("no such shelf")
        except LookupError:
            log.exception("lost")
        print("the last line")


class AtOnce(Job):
    options = {"concurrency": 5}

    async def start(self):
        log.info("order", number=self.data)
"""

CONFIGURED = {
    "default": "",
    "coloured": "import os; os.environ['FORCE_COLOR'] = '1'\n",
    "forced": """
import structlog
structlog.configure(processors=[
    structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, structlog.processors.format_exc_info,
    structlog.processors.TimeStamper(fmt="iso"), structlog.dev.ConsoleRenderer(colors=True)])
""",
    "JSON": """
import structlog
structlog.configure(processors=[
    structlog.processors.add_log_level, structlog.processors.format_exc_info,
    structlog.processors.TimeStamper(fmt="iso"), structlog.processors.JSONRenderer()])
""",
    "bytes": """
import json
import structlog
structlog.configure(processors=[
    structlog.processors.add_log_level, structlog.processors.format_exc_info,
    structlog.processors.JSONRenderer(serializer=lambda *values, **options: json.dumps(*values, **options).encode())],
    logger_factory=lambda *_: structlog.BytesLogger(sys.stdout.buffer))
""",
    "logging": """
import structlog
structlog.configure(processors=[
    structlog.stdlib.add_log_level, structlog.processors.format_exc_info, structlog.dev.ConsoleRenderer(colors=True)],
    logger_factory=structlog.stdlib.LoggerFactory())
""",
}


def lines(tmp_path: Path, configured: str, *options: str) -> list[LogLine]:
    """Return the lines of a job in a real worker."""
    (tmp_path / "shop.py").write_text(f"import sys\n{configured}\n{SHOP}")
    url = f"sqlite:///{tmp_path}/jobs.db"
    with node(url, tmp_path, *options, "--log-level", "debug"), Scheduler(url) as scheduler:
        process = scheduler.add_job("shop:Order", 7)
        process.wait(LIMIT)
        assert process.error is None
        return process.logs()


@pytest.mark.parametrize("name", CONFIGURED)
def test_lines_have_their_level_and_no_escape_sequences(tmp_path: Path, name: str) -> None:
    found = lines(tmp_path, CONFIGURED[name])

    assert [line.level for line in found] == ["debug", "warning", "error", "error"]
    texts = [line.message for line in found]
    assert "looks" in texts[0]
    assert "shelf 3" in texts[0]
    assert "no label" in texts[1]
    assert "order=7" in texts[1]
    assert "http://ann:***@till/" in texts[2]
    assert "lost" in texts[3].partition("\n")[0]
    assert "LookupError: no such shelf" in texts[3]
    assert not any("\x1b" in text or "geheim" in text for text in texts)
    if name != "logging":
        assert [line.logger for line in found] == ["structlog"] * 4
        assert texts[1] in ("no label  order=7", "no label order=7")


def test_printed_lines_are_kept_on_request_and_stand_among_them(tmp_path: Path) -> None:
    found = lines(tmp_path, CONFIGURED["default"], "--capture-output")

    assert [line.level for line in found] == ["stdout", "debug", "warning", "error", "error", "stdout"]
    assert (found[0].message, found[-1].message) == ("a line of its own", "the last line")


def test_the_command_shows_them(tmp_path: Path) -> None:
    lines(tmp_path, CONFIGURED["forced"])
    with Scheduler(f"sqlite:///{tmp_path}/jobs.db") as scheduler:
        [job] = scheduler.find_jobs()
    command = [sys.executable, "-m", "taskqueue", "--url", f"sqlite:///{tmp_path}/jobs.db"]
    shown = subprocess.run([*command, "logs", str(job.id)], capture_output=True, text=True, check=True).stdout

    assert "WARNING no label  order=7\n" in shown
    assert "\x1b" not in shown
    assert "x1b" not in shown


def test_jobs_that_run_at_once_have_their_own_lines(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with node(url, tmp_path), Scheduler(url) as scheduler:
        jobs = [scheduler.add_job("shop:AtOnce", number) for number in range(5)]
        scheduler.wait_for(jobs, timeout=LIMIT)
        assert [[line.message for line in job.logs()] for job in jobs] == [
            [f"order  number={number}"] for number in range(5)
        ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[info     ] hello", ("info", "structlog", "hello")),
        ("2026-11-29 14:59 [warning  ] no label", ("warning", "structlog", "no label")),
        ("2026-11-29T14:59:38.123456Z [critical ] x  y", ("critical", "structlog", "x  y")),
        ('{"event": "x", "level": "WARN", "logger": "shop", "b": "c d"}', ("warning", "shop", 'x b="c d"')),
        ("[done     ] hello", None),
        ("hello [info     ] world", None),
        ('{"event": "x"}', None),
        ('{"level": "info"}', None),
        ('{"level": 1, "event": "x"}', None),
        ("{", None),
        ("{" * 100_000, None),
        ("", None),
    ],
)
def test_other_lines_are_not_taken_for_lines_of_structlog(text: str, line: tuple[str, str, str] | None) -> None:
    assert parsed(text) == (None if line is None else ParsedLine(*line))


def test_escape_sequences_are_left_out() -> None:
    assert without_escapes("\x1b[1;31mred\x1b[0m \x1b]8;;http://a\x1b\\link\x1b]8;;\x07 \x1b[2K\x1bMx") == "red link x"
