"""``taskqueue`` does from a shell what an operator needs, and each command says what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from taskqueue.cli.main import COMMANDS, NEEDS, command, main
from taskqueue.cli.node import command as node
from taskqueue.exit_codes import Exit
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_it_is_for(taskqueue: Taskqueue, name: str) -> None:
    answer = taskqueue(name, "--help")

    assert (answer.code, answer.err) == (0, "")
    usage, blank, purpose, *_ = answer.out.splitlines()
    assert usage.startswith(f"Usage: taskqueue {name} ")
    assert (blank, purpose[:2]) == ("", "  ")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_terminal_of_80_columns(name: str) -> None:
    with click.Context(command) as root:
        found = command.get_command(root, name)
    assert found is not None
    with click.Context(found, info_name=f"taskqueue {name}", terminal_width=80) as asked:
        lines = found.get_help(asked).splitlines()

    assert [line for line in lines if len(line) > 80] == []


def lines_for_programs() -> Iterator[tuple[str, bool]]:
    """Yield every command and subcommand, and whether it writes JSON."""
    with click.Context(command) as root:
        for name in COMMANDS:
            found = command.get_command(root, name)
            assert found is not None
            yield from parts_for_programs(name, found)


def parts_for_programs(name: str, found: click.Command) -> Iterator[tuple[str, bool]]:
    """Yield a command that does something, and its subcommands, and whether each writes JSON."""
    if not isinstance(found, click.Group) or found.invoke_without_command:
        yield name, any("--json" in param.opts for param in found.params)
    for verb, part in found.commands.items() if isinstance(found, click.Group) else ():
        yield from parts_for_programs(f"{name} {verb}", part)


def test_every_command_answers_programs_but_those_that_draw_or_write_a_file_or_log() -> None:
    without = [name for name, has_json in lines_for_programs() if not has_json]
    assert without == ["top", "run", "web", "systemd", "completion"]


def test_jobs_are_administered_from_a_shell(taskqueue: Taskqueue) -> None:
    id = taskqueue("add", "benchmarks.jobs:Empty", "--at", "+1 hour").out.strip()
    assert [job["id"] for job in taskqueue("list", "--json").document] == [id]

    assert taskqueue("update", id, "--priority", "3").code == 0
    shown = taskqueue("show", id, "--json").document
    assert (shown["id"], shown["priority"], shown["status"]) == (id, 3, "POSTPONED")
    assert "the time it was added for" in taskqueue("why", id).out

    assert taskqueue("cancel", id).code == 0
    assert taskqueue("show", id, "--json").document["status"] == "CANCELED"
    [copy] = taskqueue("recover", id).out.split()
    assert taskqueue("stats", "--json").document["total"] == 2

    assert taskqueue("pause", "default").code == 0
    assert "paused" in taskqueue("why", copy).out
    assert taskqueue("resume", "default").code == 0
    assert taskqueue("flush", "--yes").out == "removed 2 jobs\n"
    assert taskqueue("list", "--json").document == []


def test_help_describes_each_command_in_a_whole_sentence(taskqueue: Taskqueue) -> None:
    commands = taskqueue("--help").out.partition("Jobs:")[2]

    assert "..." not in commands
    assert "also `retry`" in commands


def test_help_groups_commands_by_what_they_are_needed_for(taskqueue: Taskqueue) -> None:
    blocks = taskqueue("--help").out.split("\n\n")[-len(NEEDS) :]

    assert [block.partition(":\n")[0] for block in blocks] == list(NEEDS)
    assert [[line.split()[0] for line in block.splitlines()[1:]] for block in blocks] == [
        list(names) for names in NEEDS.values()
    ]


def test_retry_is_a_second_name_of_recover(taskqueue: Taskqueue) -> None:
    id = taskqueue("add", "--here", "tests.daemon.jobs:Empty").out.split()[0]

    copy = taskqueue("retry", id)

    assert copy.code == 0
    assert taskqueue("show", copy.out.strip(), "--json").document["job"] == "tests.daemon.jobs:Empty"
    assert "also called `retry`" in " ".join(taskqueue("recover", "--help").out.split())


@pytest.mark.parametrize(
    ("found", "extras"),
    [(node, ["metrics"]), ("run", ["web", "dev"]), ("web", ["web"]), ("top", ["top"])],
)
def test_help_names_the_extra_that_something_needs(found: click.Command | str, extras: list[str]) -> None:
    with click.Context(command) as root:
        one = command.get_command(root, found) if isinstance(found, str) else found
    assert one is not None
    with click.Context(one, info_name="taskqueue") as asked:
        text = " ".join(one.get_help(asked).split())

    assert [extra for extra in extras if f"the extra {extra}" not in text] == []


@pytest.mark.parametrize("command", [["list"], ["stats"], ["schedule", "list"], ["audit"], ["analytics"]])
def test_the_store_is_named_before_or_after_the_command(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    absent = f"sqlite://{tmp_path}/absent.db"
    codes = [main([*command, "--url", url]), main(["--url", absent, *command, f"--url={url}"])]
    assert capsys.readouterr().err == ""
    codes += [main([*command, "--url", absent]), main(["--url", url, *command, "--url", absent])]

    assert codes == [Exit.OK, Exit.OK, Exit.STORE, Exit.STORE]


def test_the_store_of_a_group_is_named_between_its_name_and_its_verb(url: str) -> None:
    assert main(["schedule", "--url", url, "list"]) == Exit.OK
