"""The quickstart: index Python's standard library with real jobs, disturb them on purpose, and show what became of it."""

from __future__ import annotations

import os
import platform
import signal
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from findings import show_encodings, show_folders, show_why
from library import IndexFolder, WriteIndex, file_names
from node import WORKERS, Node, NodeLeft, worker_of
from place import Place, shown, take_place
from watch import Signals, Stopped, Stuck, Watch

from taskqueue import Process, Scheduler
from taskqueue.cli import terminal
from taskqueue.errors import TaskqueueError

NOT_OF_THE_LIBRARY = {"__pycache__", "site-packages", "dist-packages"}

WATCHABLE_FOR = 8.0
"""Seconds over which the jobs spread their work with small pauses; without, a second would be enough for all of it."""


class Story:
    """One run of the quickstart, step by step."""

    def __init__(self, place: Place, scheduler: Scheduler, node: Node, watch: Watch, files: dict[str, int]) -> None:
        self.place = place
        self.scheduler = scheduler
        self.node = node
        self.watch = watch
        self.files = files

    def tell(self) -> None:
        """Do and say everything, in order."""
        self.start_the_node()
        folders = self.add_the_jobs()
        killed = self.kill_a_worker()
        interrupted = self.restart_the_node(killed)
        self.wait_for_all(folders)
        failed = self.write_the_index()
        self.node.stop()
        self.watch.say("stopped the node; nothing is left running")
        self.folders, self.killed, self.interrupted, self.failed = folders, killed, interrupted, failed

    def start_the_node(self) -> None:
        self.node.start()
        self.watch.say(f"started a node, process {self.node.pid}, with up to {WORKERS} workers")

    def add_the_jobs(self) -> list[Process]:
        """Add a job for each folder, the largest first, in one transaction."""
        library = str(library_folder())
        pause = WATCHABLE_FOR * WORKERS / sum(self.files.values())
        by_size = sorted(self.files, key=lambda folder: -self.files[folder])
        folders = self.scheduler.add_jobs(
            (IndexFolder, {"library": library, "folder": folder, "pause": pause}) for folder in by_size
        )
        self.watch.say(f"added {len(folders)} jobs, one for each folder")
        return folders

    def kill_a_worker(self) -> Process:
        """Kill the worker of a running job with SIGKILL and return the job when it is known to run again."""
        ...
