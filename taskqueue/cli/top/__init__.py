"""``taskqueue top``: a live screen of nodes, queues, running jobs, and problems that need action.

Only the command itself imports the screen, which needs the package textual.
"""

from __future__ import annotations

import os
import sys

import click

from taskqueue.cli import watch
from taskqueue.cli.context import StoreContext, pass_store
from taskqueue.errors import ConfigError


@click.command("top", short_help="Watch and control everything on a live screen.")
@click.option("--read-only", is_flag=True, help="Refuse every action: only look.")
@click.option(
    "--every", type=watch.interval, default="1", show_default=True, metavar="S", help="Read the store every S seconds."
)
@pass_store
def top_command(context: StoreContext, read_only: bool, every: float) -> int:
    """Watch nodes, queues, running jobs and failures on a live screen, and act on them with keys.

    It needs a terminal and the extra top: pip install 'taskqueue-jobs[top]'. ? shows the keys, q ends.
    """
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)) or os.environ.get("TERM", "dumb") == "dumb":
        raise click.UsageError(
            "top needs a terminal: use `taskqueue stats --watch`, `taskqueue nodes --watch` or `taskqueue doctor`"
        )
    try:
        import textual  # noqa: F401
    except ImportError:
        raise ConfigError("top needs the package textual: pip install 'taskqueue-jobs[top]'") from None
    from taskqueue.cli.top.app import Top

    return Top(context.store, every=every, is_read_only=read_only).run_on_terminal()


def _is_terminal(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())
