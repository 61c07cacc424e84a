"""Runs a command line: checks the variables, and ends with an exit code and one line on stderr for an error."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

import click
from click.core import ParameterSource

from taskqueue import errors
from taskqueue.cli import output
from taskqueue.exit_codes import Exit
from taskqueue.model import other_systems
from taskqueue.model.environment import NODE_COMMAND
from taskqueue.model.raw_value import flaw_of
from taskqueue.model.wording import or_nearest
from taskqueue.store.redaction import concealed, concealed_arguments, concealed_in

EXITS: Sequence[tuple[type[errors.TaskqueueError], Exit]] = (
    (errors.StoreUnavailable, Exit.STORE),
    (errors.JobNotFound, Exit.NOT_FOUND),
    (errors.ScheduleNotFound, Exit.NOT_FOUND),
    (errors.WaitTimeout, Exit.UNFINISHED),
    (errors.JobFailed, Exit.UNSUCCESSFUL),
    (errors.ConfigError, Exit.CONFIG),
    (errors.InvalidJob, Exit.CONFIG),
    (errors.InvalidQuery, Exit.CONFIG),
    (errors.TaskqueueError, Exit.ERROR),
)
"""The exit code of each error: the first class that matches counts."""


PREFIX = "TASKQUEUE_"

_OF_ALL = (
    *("TASKQUEUE_URL", "TASKQUEUE_RUNTIME_DIR", "TASKQUEUE_USERS", NODE_COMMAND),
    *("TASKQUEUE_NOTIFY_KEY", "TASKQUEUE_NOTIFY_KEY_FILE"),
    *("TASKQUEUE_NOTIFY_PASSWORD", "TASKQUEUE_NOTIFY_PASSWORD_FILE"),
)
"""Variables that are not options of a node, or also belong to commands."""

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""System errors that mean that output cannot be written."""

_FIGURES = "`taskqueue class NAME` shows one class, `taskqueue queue NAME` one queue"

_NO_ARGUMENTS: Mapping[str | None, str] = {
    "taskqueue-node": "--work-on QUEUE takes the jobs of one queue, and `taskqueue run FILE` runs one application",
    "releases": "`taskqueue release NAME` marks a release, `taskqueue unmark NAME` removes the mark",
    "failures": "`taskqueue class NAME` shows one class, `taskqueue mute ID` mutes one error",
    "nodes": "`taskqueue health --node NAME` asks one node, `taskqueue drain NODE` keeps one from taking jobs",
    "health": "`taskqueue health --node NAME` asks one node",
    "stats": _FIGURES,
    "analytics": _FIGURES,
    "events": "`taskqueue why ID` says what happened to one job",
    "add": '--data takes the data of the job, such as --data \'{"to": "ann"}\'',
}
"""For commands that take no more arguments: what the caller of one with an argument probably meant."""


_NO_MEMORY = (
    "out of memory: allow this process more (MemoryMax= of its unit, the limit of its container, ulimit -v); "
    "no acknowledged job is lost"
)


def run(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    """Run the command line and return its exit code; print an error in one line, without a traceback."""
    output.accept_every_character()
    if arguments is None:
        _conceal_arguments()
    if sys.stdout is None:  # before anything else is opened with its number
        return _complain(name, "the output cannot be written (it is closed): nothing was done", Exit.OUTPUT)
    try:
        return _run(command, name, arguments)
    except (BrokenPipeError, SystemExit):  # click turns one into the other; the reader has closed the output
        discard_output()
        return Exit.OK
    except OSError as error:
        if isinstance(error, FileNotFoundError) and _is_folder_removed():
            return _complain(name, "the working folder was removed: change to another folder", Exit.CONFIG)
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        discard_output()
        sentence = f"the output cannot be written ({error.strerror}); the command may have taken effect"
        return _complain(name, sentence, Exit.OUTPUT)


def _is_folder_removed() -> bool:
    """Return whether the working folder was removed, like the folder of an old release."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _conceal_arguments() -> None:
    """Remove a password in ``--url`` from the command line that every user of the host can read."""
    shown = concealed_arguments(sys.orig_argv)
    if shown != sys.orig_argv:
        from taskqueue.daemon.runtime import child_process

        child_process.show_arguments(shown)


def discard_output() -> None:
    """Discard further output to a broken stdout; otherwise the interpreter complains when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _run(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    for sentence in unread_variables():
        output.line(f"{name}: {sentence}", err=True)
    given = None if arguments is None else list(arguments)
    try:
        check_variables()
        result = command.main(args=given, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        output.lines(error.ctx.get_help() if error.ctx else "")
        return Exit.USAGE
    except click.ClickException as error:
        return _complain(name, _wording(error), Exit.CONFIG if _is_value(error) else Exit.USAGE)
    except errors.TaskqueueError as error:
        return complain(name, error)
    except MemoryError:
        return _complain(name, _NO_MEMORY, Exit.ERROR)
    except (click.Abort, KeyboardInterrupt):
        # Python notes an interrupt of `exec`, which makes dataclasses, and with `python -m` dies of it at the end, also
        # if it was handled since. The next `exec` removes the note.
        exec("")  # noqa: S102
        return _complain(name, "interrupted", Exit.INTERRUPTED)
    return result if isinstance(result, int) else Exit.OK


def complain(name: str, error: errors.TaskqueueError) -> Exit:
    """Print the error in one line, and return its exit code."""
    return _complain(name, str(error), next(code for kind, code in EXITS if isinstance(error, kind)))


def _complain(name: str, sentence: str, code: Exit) -> Exit:
    output.line(f"{name}: {concealed_in(' '.join(sentence.split()))}", err=True)
    return code


def _is_value(error: click.ClickException) -> bool:
    """Return whether an option has a wrong value, rather than the command being called the wrong way."""
    return isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)


def _wording(error: click.ClickException) -> str:
    if isinstance(error, click.BadParameter) and _is_value(error) and error.param is not None:
        return f"{_written(error.param)}{_origin(error)}: {error.message.rstrip('.')}{_nearest_choice(error)}"
    if isinstance(error, click.NoSuchOption):
        ours = _option_here(error)
        if ours is not None:
            return f"No such option: {error.option_name}: did you mean --{ours}?"
        way = other_systems.COMMAND_WAYS.get(error.option_name.lstrip("-"))
        if way is not None:
            return f"No such option: {error.option_name}: {way}"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message = error.format_message().rstrip(".")
        way = _NO_ARGUMENTS.get(error.ctx.command.name)
        if way is not None and "extra argument" in message:
            message += f": {way}"
        is_name = not isinstance(error, click.NoSuchOption) and error.ctx.parent is not None
        if is_name and isinstance(error.ctx.command, click.Group):
            message += f": use {', '.join(error.ctx.command.list_commands(error.ctx))}"
        return f"{message} (see {error.ctx.command_path} --help)"
    return error.format_message()


def _option_here(error: click.NoSuchOption) -> str | None:
    """Return the option of the command that has the meaning of an option of another system; None if there is none."""
    name = error.option_name.lstrip("-")
    options = set() if error.ctx is None else {option for param in error.ctx.command.params for option in param.opts}
    words = (other_systems.COMMAND_OPTIONS.get(name), other_systems.COMMAND_OPTIONS.get(name.lower()))
    meant = (*words, other_systems.OPTIONS.get(name.replace("-", "_")))
    return next((ours for ours in meant if f"--{ours}" in options), None)


def _written(param: click.Parameter) -> str:
    """Return the parameter as it is written on the command line."""
    return max(param.opts, key=len) if isinstance(param, click.Option) else str(param.name).upper()


def _nearest_choice(error: click.BadParameter) -> str:
    """Ask whether the most similar choice was meant; empty if none is similar."""
    match = re.match("'(.*)' is not one of ", error.message)
    if match is None or error.param is None or not isinstance(error.param.type, click.Choice):
        return ""
    written = match[1]
    if error.param.name == "status":
        written = other_systems.OF_STATUSES.get(written.upper(), written)
    return or_nearest(written, map(str, error.param.type.choices))


def _origin(error: click.BadParameter) -> str:
    """Return the source of a wrong value, unless it was typed."""
    if error.ctx is None or error.param is None or error.param.name is None:
        return ""
    source = error.ctx.get_parameter_source(error.param.name)
    if source is ParameterSource.ENVIRONMENT:
        return f" (from the variable {error.param.envvar})"
    return f" (from {error.ctx.params.get('config')})" if source is ParameterSource.DEFAULT_MAP else ""


def check_variables() -> None:
    """Raise ``ConfigError`` for values with quotes or spaces that a shell would have removed; ignore empty ones."""
    for name, value in os.environ.items():
        if not name.startswith(PREFIX) or not value:
            continue
        flaw = flaw_of(value)
        if name == "TASKQUEUE_RUNTIME_DIR" and not flaw and not os.path.isabs(value):
            flaw = "is not an absolute path: pass one such as /run/taskqueue"
        if flaw and name.removeprefix(PREFIX) in known_variables():
            shown = "…" if name == "TASKQUEUE_NOTIFY" else repr(concealed(value))  # the path of a webhook may be secret
            raise errors.ConfigError(f"the variable {name}={shown} {flaw}")


def unread_variables() -> Iterator[str]:
    """Yield a sentence for each of these variables that taskqueue does not know; its value is not shown."""
    given = [name for name in os.environ if name.startswith(PREFIX) and name not in _OF_ALL]
    if not given:
        return
    names = known_variables()
    for name in sorted({name.removeprefix(PREFIX) for name in given} - {*names}):
        near = get_close_matches(name, names, n=1)
        way_out = f"did you mean {PREFIX}{near[0]}?" if near else f"use {', '.join(PREFIX + other for other in names)}"
        yield f"unknown variable {PREFIX}{name}: {way_out}"


def known_variables() -> list[str]:
    """Return the names of our variables without the prefix."""
    from taskqueue.cli.node_options import NODE  # imported late: most commands do not need them

    return sorted(["CONFIG", "RUNTIME_DIR", "USERS", *(str(option.envvar).removeprefix(PREFIX) for option in NODE)])
