"""The quickstart: index Python's standard library with real jobs, disturb them on purpose, show what became of them."""

from __future__ import annotations

import os
import platform
import signal
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from findings import show_encodings, show_folders, show_kept, show_why
from library import IndexFolder, WriteIndex, file_names, named
from node import WORKERS, Node, NodeLeft, worker_of
from place import Place, shown, take_place
from watch import Signals, Stopped, Stuck, Watch

from taskqueue import Process, Scheduler
from taskqueue.cli import output, terminal
from taskqueue.errors import TaskqueueError

NO_PART_OF_IT = {"__pycache__", "site-packages", "dist-packages"}

WATCHABLE_FOR = 8.0
"""Seconds over which the jobs spread their work with small pauses; without them it would all be over in one."""

PREFERRED = WORKERS
"""Folders with a better priority: when their jobs are killed or interrupted, they do not queue up behind the others."""

BEGUN = 20.0
"""How far, in percent, a job is at least when it is disturbed."""


class Story:
    """One run of the quickstart, step by step; ``files`` says how many files each folder has."""

    def __init__(self, place: Place, scheduler: Scheduler, node: Node, watch: Watch, files: Mapping[str, int]) -> None:
        self._place = place
        self._scheduler = scheduler
        self._node = node
        self._watch = watch
        self._files = files

    def start_the_node(self) -> None:
        """Start it."""
        self._node.start()
        self._watch.say(f"started a node, process {self._node.pid}, with up to {WORKERS} workers")

    def add_the_jobs(self) -> list[Process]:
        """Add one job for each folder, those with most files first, and some of them with priority."""
        pause = WATCHABLE_FOR * WORKERS / sum(self._files.values())
        by_size = sorted(self._files, key=lambda folder: -self._files[folder])
        processes = self._scheduler.add_jobs(
            (IndexFolder, {"library": str(library()), "folder": folder, "pause": pause}, {"priority": priority})
            for folders, priority in ((by_size[:PREFERRED], -1), (by_size[PREFERRED:], 0))
            for folder in folders
        )
        self._watch.say(f"added {len(processes)} jobs, one for each folder")
        return processes

    def kill_a_worker(self) -> Process:
        """Kill a worker in the middle of its job, and return the job once it runs again."""
        job = None
        while job is None:
            job = self._kill_worker_of(self._watch.until(self._begun, "a job has begun"))
        again = self._watch.until(lambda _: worker_of(job.id), "the job runs again")
        self._watch.say(f"the job runs again in worker {again}, from its last checkpoint")
        reached = job.progress
        self._watch.until(lambda _: job.refresh().progress > reached, "the job is further than it was")
        return job

    def restart_the_node(self, killed: Process) -> Process:
        """Stop the node while it works and start it again; return a job that was interrupted, once it goes on."""
        while True:
            self._watch.until(lambda jobs: self._begun([job for job in jobs if job != killed]), "another has begun")
            self._node.stop()
            jobs = [job for job in self._scheduler.get_jobs() if job.attempts]
            interrupted = [job for job in jobs if job.attempts[-1].outcome == "Interrupted"]
            self._watch.say(f"SIGTERM to the node: it interrupted {len(interrupted)} jobs and left")
            self._node.start()
            self._watch.say(f"started it again, process {self._node.pid}")
            candidates = [job for job in interrupted if job != killed and job.progress >= BEGUN]
            if candidates:
                break
        job = max(candidates, key=self._watch.files_left)
        self._watch.until(lambda _: worker_of(job.id) or job.refresh().is_final, "the job goes on")
        self._watch.say(f"{self._where(job)} goes on from its checkpoint")
        return job

    def wait_for_all(self, jobs: Sequence[Process]) -> None:
        """Wait until all folders are done."""
        self._watch.until(lambda jobs: not jobs, "all jobs have ended")
        self._scheduler.wait_for(jobs, raise_on_error=True)
        self._watch.say(f"all {len(jobs)} folders are done")

    def write_the_index(self) -> Process:
        """Add a job that fails because a folder is missing, make the folder, and return the job when it is done."""
        job = self._scheduler.add_job(WriteIndex, {"file": str(self._place.index)})
        error = self._watch.until(lambda _: job.refresh().error, "the job that writes the index fails")
        self._watch.say(f"the job that writes the index failed: {error.type}")
        self._place.index.parent.mkdir()
        self._watch.say("made the folder it misses; it is tried again a second after it failed")
        self._watch.until(lambda _: job.refresh().is_final, "the index is written")
        job.wait(raise_on_error=True)
        self._watch.say(f"it wrote an index of {job.result:,} files")
        return job

    def stop_the_node(self) -> None:
        """Stop it for good."""
        self._node.stop()
        self._watch.say("stopped the node; nothing is left running")

    def _kill_worker_of(self, job: Process) -> Process | None:
        """Kill the worker and return the job; None if the job had ended just before."""
        pid = worker_of(job.id)
        if pid is None:
            return None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        attempt = self._watch.until(lambda _: job.refresh().attempts, "the end of the attempt is known")[-1]
        if attempt.outcome != "Crashed":
            return None
        self._watch.say(f"SIGKILL to worker {pid} of {self._where(job)}")
        return job

    def _begun(self, pending: Sequence[Process]) -> Process | None:
        """Return the running job with some files behind it and most before it, once there is one."""
        if not pending:
            raise Stuck("this machine indexed everything before a job could be disturbed: start it again")
        begun = [job for job in pending if job.is_processing and job.progress >= BEGUN]
        return max(begun, key=self._watch.files_left, default=None)

    def _where(self, job: Process) -> str:
        return f"{named(job.data['folder'])} ({self._watch.done_files(job)} of {self._files[job.data['folder']]} files)"


def library() -> Path:
    """Return the folder of the standard library of this Python."""
    return Path(sysconfig.get_path("stdlib"))


def survey(top: Path) -> dict[str, int]:
    """Return how many files each folder has."""
    files: dict[str, int] = {}
    for folder, subfolders, _ in os.walk(top):
        subfolders[:] = [name for name in subfolders if name not in NO_PART_OF_IT]
        number = len(file_names(Path(folder)))
        if number:
            files[os.path.relpath(folder, top)] = number
    return files


def tell(place: Place, node: Node, signals: Signals) -> None:
    """Run the quickstart and show what it has found."""
    files = survey(library())
    terminal.heading(f"An index of the standard library of Python {platform.python_version()}")
    output.lines(f"{shown(library())}: {sum(files.values()):,} files in {len(files)} folders\n")
    with Scheduler(str(place.store)) as scheduler:
        with terminal.progress("files") as bar:
            story = Story(place, scheduler, node, Watch(scheduler, node, signals, files, bar), files)
            story.start_the_node()
            folders = story.add_the_jobs()
            killed = story.kill_a_worker()
            interrupted = story.restart_the_node(killed)
            story.wait_for_all(folders)
            written = story.write_the_index()
            story.stop_the_node()
        show_folders(folders)
        show_encodings(folders)
        for job, disturbed in ((killed, "its worker was killed"), (interrupted, "its node was stopped")):
            show_why(f"Why is {named(job.data['folder'])} done although {disturbed}?", job.refresh())
            show_kept(job)
        show_why("Why is the index written although its job failed?", written)
    terminal.heading("Look around")
    output.lines(f"less {shown(place.index)}\nbin/taskqueue --url {shown(place.store)} list\n")


def main() -> int:
    """Run the quickstart, leave nothing running, and return the exit code."""
    if sys.argv[1:]:
        print("bin/quickstart: it takes no arguments", file=sys.stderr)
        return 2
    signals = Signals()
    place = take_place()
    node = Node(place)
    try:
        try:
            tell(place, node, signals)
        finally:
            node.stop()
    except Stopped as stopped:
        return complain(f"{stopped}; nothing is left running", 128 + stopped.signum)
    except (NodeLeft, Stuck, TaskqueueError) as error:
        return complain(f"{error}; the node's log is {shown(place.log)}", 1)
    except BrokenPipeError:  # who reads the output has enough; the interpreter must not write the rest at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0


def complain(sentence: str, code: int) -> int:
    """Print what ended the quickstart early and return the exit code."""
    with suppress(OSError):  # after SIGHUP the terminal is gone
        print(f"bin/quickstart: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
