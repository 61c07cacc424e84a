"""The jobs that the acceptance tests give to real nodes; facts about their runs go to files, outside any store."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sqlite3
import subprocess
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from taskqueue import ClassOptions, Fail, Interrupted, Job, Retry, Snooze


def write_line(path: str, line: str) -> None:
    """Append one whole line, also when several processes do so at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


class Echo(Job):
    """Returns its data."""

    def start(self) -> Any:
        return self.data


class Prompt(Echo):
    """Promises to start soon."""

    options: ClassVar[ClassOptions] = {"begin_within": "1h", "promise": 0.9}


class Trace(Job):
    """Writes one line for each run into the file ``data["file"]``."""

    def start(self) -> str:
        write_line(self.data["file"], f"{self.id} {self.attempt}")
        return "traced"


class Gate(Job):
    """Writes a line when it starts, then waits until the FIFO ``data["gate"]`` is opened for writing."""

    def start(self) -> str:
        write_line(self.data["file"], f"started {self.id} {self.attempt}")
        Path(self.data["gate"]).read_text()
        write_line(self.data["file"], f"ended {self.id} {self.attempt}")
        return "through"


class EveryOther:
    """A schedule of the user's own: every other tenth of a second; writes a line each time that it is asked."""

    def __init__(self, file: str) -> None:
        self._file = file

    def next(self, after: datetime) -> datetime:
        write_line(self._file, f"asked in {os.getpid()}")
        return after + timedelta(seconds=0.2)


class Keeper(Job):
    """Checkpoints when it is interrupted; a later attempt returns what was kept."""

    def start(self) -> Any:
        if self.state is not None:
            return self.state
        try:
            write_line(self.data["file"], f"started {self.id} {self.attempt}")
            Path(self.data["gate"]).read_text()
        except Interrupted as interruption:
            self.checkpoint({"reason": interruption.reason, "attempt": self.attempt})
            raise
        return "uninterrupted"


class Stepper(Job):
    """Checkpoints at once, says so, and waits to be killed; a later attempt returns what was kept."""

    def start(self) -> Any:
        if self.state is not None:
            return self.state
        self.checkpoint({"step": 1})
        self.progress(40, "at step 1")
        write_line(self.data["file"], "kept")
        return Path(self.data["gate"]).read_text()


class FailUntil(Job):
    """Fails until its attempt number is ``data["until"]``."""

    def start(self) -> int:
        if self.attempt < self.data["until"]:
            raise ValueError(f"attempt {self.attempt} stumbled")
        return self.attempt


class SnoozeOnce(Job):
    """Snoozes on its first run, as the file ``data["file"]`` tells."""

    def start(self) -> str:
        if not Path(self.data["file"]).exists():
            write_line(self.data["file"], "snoozed")
            raise Snooze(0.05)
        return "awake"


class GiveUp(Job):
    """Gives up for good."""

    def start(self) -> None:
        raise Fail("no way")


class Again(Job):
    """Asks for another attempt soon, until there is none left."""

    def start(self) -> int:
        if not self.is_last_attempt:
            raise Retry(0.01)
        return self.attempt


class KillOwnWorker(Job):
    """Kills its own worker, as many times as ``data["times"]`` says."""

    def start(self) -> int:
        write_line(self.data["file"], "died")
        if len(Path(self.data["file"]).read_text().splitlines()) <= self.data["times"]:
            os.kill(os.getpid(), 9)
        return self.attempt


class Leaver(Job):
    """Asks its own worker to leave."""

    def start(self) -> None:
        write_line(self.data["file"], "left")
        os.kill(os.getpid(), 15)


class ManagerLeaver(Job):
    """Asks the manager of its worker to leave when the FIFO ``data["gate"]`` is opened, and waits for the end."""

    def start(self) -> None:
        Path(self.data["gate"]).read_text()
        write_line(self.data["file"], "left")
        os.kill(os.getppid(), 15)
        while True:
            signal.pause()


class NodeLeaver(Job):
    """Sends the signal ``data["signal"]`` to its node, itself or through another process, and waits for the end."""

    def start(self) -> None:
        if "gate" in self.data:
            Path(self.data["gate"]).read_text()
        manager = Path(f"/proc/{os.getppid()}/stat").read_text()
        node = int(manager.rpartition(")")[2].split()[1])
        write_line(self.data["file"], "left")
        if self.data["by"] == "shell":
            command = ["sh", "-c", f"kill -{self.data['signal']} {node}; read line"]
            subprocess.Popen(command, stdin=subprocess.PIPE).wait()
        elif self.data["by"] == "command":
            os.kill(node, signal.SIGSTOP)  # it must not look before the command has ended
            subprocess.run(["sh", "-c", f"kill -{self.data['signal']} {node}"], check=True)
            os.kill(node, signal.SIGCONT)
        else:
            os.kill(node, self.data["signal"])
        while True:
            signal.pause()


class Chain(Job):
    """Adds another job from inside and returns its id."""

    def start(self) -> str:
        process = self.scheduler.add_job(Echo, {"from": str(self.id)})
        return str(process.id)


class Uninterruptible(Job):
    """Says that it runs and does not end, whoever asks."""

    def start(self) -> None:
        said = [f"started {self.id} {self.attempt}"]
        while True:
            try:
                while said:  # within: the interrupt may come as soon as the line is there
                    write_line(self.data["file"], said.pop())
                Path(self.data["gate"]).read_text()
            except Interrupted:
                continue


class Sum(Job):
    """Returns the sum of what the jobs that it depends on have returned."""

    def start(self) -> int:
        return sum(self.dependencies.values())


class Dividing(Job):
    """Adds a child for each part, once, and returns the sum of what they returned."""

    def start(self) -> int:
        if self.state is None:
            self.scheduler.add_jobs([(Echo, part, {"parent": self}) for part in self.data["parts"]])
            self.checkpoint("divided")
        return sum(child.result for child in self.wait_children())


class Crowd(Job):
    """Writes lines when it begins and ends, and stays for a moment in between."""

    def start(self) -> None:
        write_line(self.data["file"], f"{time.monotonic():.6f} +1 {self.data['key']}")
        time.sleep(self.data["seconds"])
        write_line(self.data["file"], f"{time.monotonic():.6f} -1 {self.data['key']}")


class Clock(Job):
    """Returns the time of its first statement."""

    def start(self) -> float:
        return time.time()


class OpenTransaction(Job):
    """Fails in the middle of a transaction of its own on the store's file, whose connection stays open."""

    kept: ClassVar[list[sqlite3.Connection]] = []

    def start(self) -> None:
        if "gate" not in self.data:
            self._begin()
            raise ValueError("before the commit")
        threading.Thread(target=self._begin_late, daemon=True).start()

    def _begin_late(self) -> None:
        with open(self.data["gate"]) as gate:
            gate.read()
        self._begin()

    def _begin(self) -> None:
        raw = sqlite3.connect(self.data["file"], isolation_level=None, check_same_thread=False)
        self.kept.append(raw)
        raw.execute("CREATE TABLE IF NOT EXISTS own (value)")
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("INSERT INTO own VALUES (1)")


class LastWords(Job):
    """Logs, kills its worker in the first attempt, and waits at the FIFO ``data["gate"]`` in the second."""

    def start(self) -> None:
        self.log.warning("attempt %d", self.attempt)
        if self.attempt == 1:
            os.kill(os.getpid(), 9)
        Path(self.data["gate"]).read_text()
        self.log.warning("through")


class LogPassword(Job):
    """Logs and raises the address of its store, with the password; between them it waits at the FIFO ``data``."""

    def start(self) -> None:
        address = os.environ["TASKQUEUE_URL"]
        self.log.warning("working with %s", address, extra={"address": address})
        print(f"working with {address}")
        if self.data is not None:
            Path(self.data).read_text()
        raise ConnectionError(f"{address} has hung up")


class Undying(Job):
    """Takes back its wish to die with its manager, ignores SIGTERM, and writes its pid and those of its children."""

    def start(self) -> None:
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG of linux/prctl.h
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        children = [subprocess.Popen(["sleep", "1000"], start_new_session=alone).pid for alone in (False, True)]
        write_line(self.data["file"], " ".join(map(str, (os.getpid(), *children))))
        Path(self.data["gate"]).read_text()


class Awaiting(Job):
    """One of many in a worker: says that it runs, and awaits what never comes."""

    options: ClassVar[ClassOptions] = {"concurrency": 4}

    async def start(self) -> None:
        write_line(self.data["file"], self.data["as"])
        await asyncio.Event().wait()


class Hanging(Job):
    """Writes its pid; then C code holds the interpreter for ever; a later run waits at the gate."""

    def start(self) -> None:
        write_line(self.data["file"], str(os.getpid()))
        if len(Path(self.data["file"]).read_text().splitlines()) == 1:
            mutex, lock = ctypes.create_string_buffer(128), ctypes.PyDLL(None).pthread_mutex_lock
            lock(mutex)
            lock(mutex)
        Path(self.data["gate"]).read_text()
