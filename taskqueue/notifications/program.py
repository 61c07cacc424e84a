"""Hands notifications to a command: as JSON at its standard input."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from taskqueue.errors import ConfigError
from taskqueue.execution.shell_job import listened_to, run_command
from taskqueue.insight.notifications import Message
from taskqueue.model.environment import for_commands
from taskqueue.notifications.receiver import WITHIN, NotDelivered
from taskqueue.store.redaction import concealed

ID = "TASKQUEUE_NOTIFICATION_ID"
"""The variable of the command with the id of the message."""

MOST_SAID = 300
"""The last characters of its standard error that are kept of a command that failed."""


@dataclass(frozen=True)
class Program:
    """A command without arguments, which takes a message with exit code 0."""

    name: str
    within: float = WITHIN
    """Seconds after which it is killed."""
    uninterrupted: Callable[[], AbstractContextManager[object]] = nullcontext
    """Returns a context in which the run that sends the message is not interrupted."""

    def check(self, variables: Mapping[str, str]) -> None:
        """Raise ``ConfigError`` if there is no such program."""
        if shutil.which(self.name, path=variables.get("PATH", os.defpath)) is None:
            raise ConfigError(
                f"--notify {self.name} is not a program that this user can run: name one by its path, a URL "
                "(https://…), or an address (mailto:…)"
            )

    def send(self, message: Message, variables: Mapping[str, str]) -> None:
        """Run the command, and wait for its end."""
        self.check(variables)
        try:
            command, said = run_command(lambda: self._begun(message, variables), self._attend, self.uninterrupted())
        except TimeoutError:
            raise NotDelivered(f"did not end within {self.within:g} s") from None
        except OSError as error:
            raise NotDelivered(f"cannot be started: {error.strerror}") from None
        if command.returncode != 0:
            words = said.strip()[-MOST_SAID:]
            raise NotDelivered(f"ended with exit code {command.returncode}{': ' if words else ''}{words}")

    def _begun(self, message: Message, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        path = shutil.which(self.name, path=variables.get("PATH", os.defpath)) or self.name
        # The command reads it when it likes, or not at all; it is in memory, since disks may be full.
        with open(os.memfd_create("taskqueue-notification"), "w+b") as document:
            document.write(message.json())
            document.seek(0)
            return subprocess.Popen(
                [path],
                env={**for_commands(variables), ID: message.id},
                stdin=document,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )

    def _attend(self, command: subprocess.Popen[bytes]) -> tuple[subprocess.Popen[bytes], str]:
        [said] = listened_to(command, command.stderr, within=self.within)
        return command, said


def program_of(text: str, uninterrupted: Callable[[], AbstractContextManager[object]] = nullcontext) -> Program:
    """Return the command of this name; raise ``ConfigError`` for what cannot be one."""
    if "://" in text or not text.isprintable() or len(text.split()) != 1:
        raise ConfigError(
            f"--notify {concealed(text)!r} is not a receiver: pass a URL (https://…), an address "
            "(mailto:…), or the path of a program, without arguments"
        )
    return Program(text, uninterrupted=uninterrupted)
