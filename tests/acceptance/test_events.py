"""What listeners hear of real nodes: every step of every job, workers that come and go, and who leads."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from taskqueue import Event, Scheduler
from taskqueue.exit_codes import Exit
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Echo, FailUntil, Gate, KillOwnWorker
from tests.nodes import LIMIT, eventually, node

ONE_WORKER = ("--pm", "static", "--min-children", "1")


LISTENER = """
import sys
from pathlib import Path
from taskqueue import Scheduler
from tests.acceptance.work import write_line

url, place, file = sys.argv[1:]
for event in Scheduler(url).events(cursor=Path(place).read_text()):
    write_line(file, f"{event.job_id} {event.name}")
    Path(f"{place}.new").write_text(event.cursor)
    Path(f"{place}.new").replace(place)
"""


def heard(scheduler: Scheduler, cursor: str) -> list[Event]:
    """Return what has happened since the cursor, each event once."""
    return list({event.id: event for event in scheduler.events(cursor=cursor, timeout=0)}.values())


def of_node(scheduler: Scheduler, cursor: str, name: str) -> list[Event]:
    return [event for event in heard(scheduler, cursor) if event.name == name]


def test_a_listener_that_is_cut_off_again_and_again_misses_nothing(
    url: str, scheduler: Scheduler, tmp_path: Path
) -> None:
    cursor = scheduler.cursor()
    jobs = scheduler.add_jobs(
        [(Echo, n) for n in range(40)] + [(FailUntil, {"until": 2}, {"retry": 1, "retry_interval": 0})]
    )
    seen: Counter[tuple[str, str]] = Counter()
    wanted = {str(job.id) for job in jobs}

    with node(url, tmp_path):
        while wanted:
            for count, event in enumerate(scheduler.events({"queue": "default"}, cursor, timeout=LIMIT)):
                seen[str(event.job_id), event.name] += 1
                cursor = event.cursor
                if event.name == "done":
                    wanted.discard(str(event.job_id))
                if count == 9 or not wanted:
                    break

    assert {names for _, names in seen} == {"waiting", "processing", "done", "retried"}
    for job in jobs:
        retried, claims = seen[str(job.id), "retried"], job.refresh().snapshot.claims
        assert retried == (job is jobs[-1])
        assert seen[str(job.id), "processing"] == claims  # more than runs, where one was handed back
        assert seen[str(job.id), "waiting"] == claims - retried
        assert seen[str(job.id), "done"] == 1


def test_a_listener_that_is_killed_again_and_again_misses_no_end(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    place = tmp_path / "cursor"
    place.write_text(scheduler.cursor())
    jobs = scheduler.add_jobs([(Echo, n) for n in range(100)])
    ends = {f"{job.id} done" for job in jobs}
    command = [sys.executable, "-c", LISTENER, url, str(place), files.file]

    with node(url, tmp_path):
        for enough in (1, 150, 10_000):  # lines in all
            with subprocess.Popen(command) as listener:
                eventually(lambda enough=enough: len(files.lines()) >= enough or ends <= set(files.lines()))  # type: ignore[misc]
                listener.kill()

    assert ends <= set(files.lines())


def test_workers_and_leads_are_told_by_their_node(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    cursor = scheduler.cursor()

    with node(url, tmp_path, "--name", "web-1", *ONE_WORKER) as running:
        scheduler.wait_for([scheduler.add_job(KillOwnWorker, {"file": files.file, "times": 1})], timeout=LIMIT)
        eventually(lambda: len(of_node(scheduler, cursor, "worker_spawned")) == 2)
        pids = {worker.pid for worker in running.workers()}
        assert running.stop() == Exit.OK

    spawned, ended = of_node(scheduler, cursor, "worker_spawned"), of_node(scheduler, cursor, "worker_ended")
    assert {event.about["pid"] for event in spawned} == {event.about["pid"] for event in ended} > pids
    assert [event.about["exit"] for event in ended] == ["killed by SIGKILL", "exited with status 0"]
    told = [event.name for event in heard(scheduler, cursor) if event.node == "web-1"]
    assert Counter(told) == {"worker_spawned": 2, "worker_ended": 2, "became_leader": 1, "stepped_down": 1}


def test_callbacks_bound_in_a_process_hear_of_a_node_elsewhere(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    pids: list[int] = []
    names: set[str] = set()
    job = scheduler.add_job(Gate, {"file": files.file, "gate": files.gate()})
    begins = scheduler.cursor()
    scheduler.on("worker_spawned", lambda event: pids.append(event.about["pid"]))
    scheduler.on("processing", lambda _: files.open())
    scheduler.on("*", lambda event: names.add(event.name))

    with node(url, tmp_path, *ONE_WORKER):
        scheduler.listen(lambda _: {"done", "worker_spawned"} <= names, cursor=begins, timeout=LIMIT)

    assert job.refresh().attempts[0].pid in pids
