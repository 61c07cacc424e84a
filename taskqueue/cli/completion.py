"""``taskqueue completion``, and the names that a shell can complete: ids, queues, classes, schedules and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import click
from click.shell_completion import CompletionItem, get_completion_class

from taskqueue.cli import output
from taskqueue.cli.context import StoreContext
from taskqueue.errors import TaskqueueError
from taskqueue.model.job_filter import KEYS, STATUSES, Names
from taskqueue.model.query import EVERYTHING
from taskqueue.store import Store

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_TASKQUEUE_COMPLETE"

RECENT = 200
"""How many jobs' ids are offered, newest first."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Write the completion script of a shell.

    Bash: `eval "$(taskqueue completion bash)"` in ~/.bashrc; zsh likewise in ~/.zshrc; fish: `taskqueue completion fish
    > ~/.config/fish/completions/taskqueue.fish`. Commands, options, ids, queues, classes, schedules and nodes are
    completed.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click knows the three
    script = kind(ctx.find_root().command, {}, "taskqueue", VARIABLE).source()
    output.lines(_with_colons(script) if shell == "bash" else script)


def _with_colons(script: str) -> str:
    """Return the bash script for names such as ``shop:Order``, which bash splits into three words.

    Bash replaces only the part after the last colon, so the script offers only that part.
    """
    script = script.replace("    local response\n", _JOIN, 1).replace("    return 0\n", f"{_CUT}    return 0\n", 1)
    return script.replace('"${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD', '"$words" COMP_CWORD=${#breaks}', 1)


_JOIN = """\
    local response words="${COMP_WORDS[*]:0:COMP_CWORD+1}"
    words=${words//$'\\n:'/:}
    words=${words//:$'\\n'/:}
    local current=${words##*$'\\n'} breaks=${words//[!$'\\n']/}
"""

_CUT = """\
    if [[ $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*:}"}"}")
    fi
"""


def _completing(find: Callable[[Store], Iterable[tuple[str, str]]]) -> Complete:
    """Return a completion of the names, each with its description, that the store has; nothing if there is no store."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with closing(StoreContext(ctx.find_root().params.get("url"))) as context:
                descriptions = dict(find(context.store))
        except TaskqueueError:
            return []
        return [CompletionItem(name, help=about) for name, about in descriptions.items() if name.startswith(incomplete)]

    return complete


@_completing
def ids(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the ids of the newest jobs."""
    for record in store.find(EVERYTHING, order="-created_at", limit=RECENT):
        yield str(record.id), f"{record.job} {record.status.name}"


def recent_classes(store: Store) -> set[str]:
    """Return the classes of the newest jobs."""
    return {record.job for record in store.find(EVERYTHING, order="-created_at", limit=RECENT)}


def names_of(store: Store) -> Names:
    """Return the names that the newest jobs have, and all queues."""
    return Names(
        store.find(EVERYTHING, order="-created_at", limit=RECENT), sorted({queue for queue, _ in store.tally()})
    )


@_completing
def classes(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the classes of the newest jobs."""
    yield from ((job, "") for job in recent_classes(store))


@_completing
def queues(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the queues."""
    for queue in sorted({queue for queue, _ in store.tally()}):
        yield queue, ""


@_completing
def tokens(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the keys of tokens, and the tokens that the newest jobs match."""
    names = names_of(store)
    yield from ((f"{key}:", about) for key, about in KEYS.items() if key != "query")
    yield from ((f"status:{status}", "") for status in STATUSES if " " not in status)
    yield from ((f"{token.key}:{token.value}", "") for token in names.tokens())
    yield from ((tag, "") for tag in names.of("tag") if ":" in tag)


@_completing
def schedules(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the schedules."""
    for schedule in store.schedules():
        yield schedule.name, str(schedule.trigger)


@_completing
def nodes(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the nodes."""
    from taskqueue.insight.nodes import names

    yield from ((name, "") for name in names(store.leases()))


@_completing
def failures(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the ids of the failures of the last hour."""
    from taskqueue.insight.overview_reader import OverviewReader

    for group in OverviewReader(store).read().groups:
        yield group.id, f"{group.job}: {group.fingerprint or 'no error'}"


@_completing
def releases(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the marked releases, the newest first."""
    from taskqueue.insight.releases import releases_of

    for release in reversed(releases_of(store.leases())):
        yield release.name, f"marked by {release.by}"
