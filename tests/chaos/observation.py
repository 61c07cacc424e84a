"""Observes the nodes of a storm by all that they offer while it rages: metrics, health, JSON logs; and what is left."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from taskqueue.insight import control_socket
from taskqueue.insight.control_socket import Silence
from tests.nodes import LIMIT, eventually
from tests.servers import free_port

PAUSE = 0.02
"""Seconds between two rounds of questions."""

ENDS = ("done", "failed", "timeout", "canceled")
RUN = re.compile(r" run (\w*\d\w*)")  # ids have digits, unlike "its run was asked to end"
PRINTED = "printed by run "
"""How lines begin that the jobs print: they are in no format."""


class Observation:
    """Asks every node all the time, in a thread of its own, and notes each answer that is wrong."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._folder = folder
        self._ports = {name: free_port() for name in names}
        self._sockets, self._temporary = folder / "run", folder / "temporary"
        self._temporary.mkdir()
        self.environment: Mapping[str, str] = {
            control_socket.VARIABLE: str(self._sockets),
            "TMPDIR": str(self._temporary),
        }
        """Where the nodes leave what they leave."""
        self._wrong: list[str] = []
        self._answers: Counter[str] = Counter()
        self._counted: defaultdict[tuple[str, float], dict[str, float]] = defaultdict(dict)
        """The runs that each incarnation has counted as the end of a job, by class, queue and outcome."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def options(self, node: str) -> Sequence[str]:
        """Return the options of a node: all that can be switched on is."""
        address = f"127.0.0.1:{self._ports[node]}"
        return ("--metrics", address, "--log-format", "json", "--capture-output")

    def settle(self, tend: Callable[[], None]) -> None:
        """Wait until each node says both ways that it is ready, while ``tend`` starts those that left; ask no more."""

        def all_are_ready() -> bool:
            tend()
            asked = [answer.health is not None and answer.health["ready"] for _, answer in self._asked()]
            pages = [self._page(port, "/ready")[0] == 200 for port in self._ports.values()]
            return all(pages) and asked.count(True) == len(self._ports)

        eventually(all_are_ready)
        self.close()

    def look_at_memory(self, process: psutil.Process) -> None:
        """Note memory that is shared by a name: nobody would remove it behind a process that is killed."""
        with suppress(psutil.NoSuchProcess):
            maps = process.memory_maps(grouped=True)
            named = (one.path for one in maps if os.path.dirname(one.path) == "/dev/shm")  # deeper: files of the store
            self._wrong += [f"{process} has {path} mapped" for path in named]

    def close(self) -> None:
        """Ask no more."""
        self._is_over.set()
        self._thread.join()

    def complaints(self, ended: int) -> Iterator[str]:
        """Yield in words what was wrong and what the nodes have left, where so many jobs have ended."""
        yield from self._wrong
        counted = sum(sum(runs.values()) for runs in self._counted.values())
        if counted > ended:
            yield f"metrics counted the ends of {counted:g} jobs, there were {ended}"
        yield from self._complaints_of_logs()
        left = (path for place in (self._sockets, self._temporary) for path in place.rglob("*"))
        yield from (f"{path} is left over" for path in left if not path.is_dir())
        for node, port in self._ports.items():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    yield f"port {port} of node {node} is still open"

    @property
    def figures(self) -> str:
        """The numbers of answers."""
        return f"answers   {dict(sorted(self._answers.items()))}"

    def _watch(self) -> None:
        while not self._is_over.wait(PAUSE):
            for node, port in self._ports.items():
                self._scrape(node, port)
            for path, answer in self._asked():
                self._answers[answer.silence.name.lower() if answer.silence else "health"] += 1
                if answer.silence not in (None, Silence.KILLED):
                    self._wrong.append(f"{path.name}: {answer.silence}")
                elif answer.health is not None and not answer.health["live"]:
                    self._wrong.append(f"not live: {answer.health}")

    def _asked(self) -> Iterator[tuple[Path, control_socket.Answer]]:
        for path in self._sockets.glob("*"):
            yield path, control_socket.ask(path, LIMIT)

    def _scrape(self, node: str, port: int) -> None:
        status, text = self._page(port, "/metrics")
        self._answers["metrics" if status == 200 else "no metrics"] += 1
        if status != 200:
            return
        values = {
            (sample.name, *sample.labels.values()): (sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        [(_, born)] = [value for (name, *_), value in values.items() if name == "process_start_time_seconds"]
        before = self._counted[node, born]
        for key, (labels, value) in values.items():
            if key[0] == "taskqueue_runs_total" and labels["outcome"] in ENDS:
                if value < before.get(str(key), 0):
                    self._wrong.append(f"{node} counts backwards: {key}")
                before[str(key)] = value

    def _page(self, port: int, path: str) -> tuple[int, str]:
        """Return status and text of a page, status 0 of a node that is not there or dies while it answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LIMIT) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, ""
        except TimeoutError:
            self._wrong.append(f"port {port} does not answer")
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                self._wrong.append(f"port {port} does not answer")
        return 0, ""

    def _complaints_of_logs(self) -> Iterator[str]:
        """Yield lines of logs that are not JSON or name another run than theirs, and ends that are told twice."""
        done: Counter[str] = Counter()
        for line in self._lines():
            if line.startswith(PRINTED):
                continue
            try:
                fields = json.loads(line)
            except ValueError:
                yield f"a line of the log is not JSON: {line[:200]}"
                continue
            run = RUN.search(fields["message"])
            if run is not None and run[1] != fields.get("job_id"):
                yield f"a line of the log has the fields of another run: {line}"
            if fields["logger"] == "taskqueue.runs" and fields.get("status") == "DONE":
                done[fields["job_id"]] += 1
        yield from (f"job {id} is logged as DONE {times} times" for id, times in done.items() if times > 1)

    def _lines(self) -> Iterator[str]:
        """Yield the lines of all logs, without the banners and without a line that a kill has cut off."""
        for file in sorted(self._folder.glob("*/node-*.log")):
            lines = file.read_text().splitlines(keepends=True)
            with suppress(StopIteration):
                begin = next(number for number, line in enumerate(lines) if line.startswith("{"))
                yield from (line.rstrip("\n") for line in lines[begin:] if line.endswith("\n"))
