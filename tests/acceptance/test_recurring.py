"""Series and schedules end to end: they go on whatever is killed, and no slot has two jobs (X-13, LZQ-14)."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from taskqueue import Custom, Every, Process, Scheduler, Status
from taskqueue.model.schedules.origin import FromSchedule, Series
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import Gate, Trace
from tests.chaos.leaders import contest
from tests.nodes import LIMIT, eventually, node, title

START = datetime(2020, 1, 1, tzinfo=timezone.utc)
QUICK = Every("0.2 s", START)
EVERY_OTHER = "tests.acceptance.work:EveryOther"


def test_a_series_goes_on_whatever_is_killed_at_whatever_step(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    options = ("--name", "a", "--lease", "600")
    data = {"file": files.file, "gate": files.gate()}
    first = scheduler.add_job(Gate, data, interval="0.2 s", crash_retries=0)
    with node(url, tmp_path, *options) as killed:
        begun(scheduler, 1)
        killed.kill()  # with all it started, in the middle of a run
    with node(url, tmp_path, *options) as killed:
        begun(scheduler, 2)
        worker = eventually(lambda: [one for one in killed.family() if "worker Gate" in title(one)])[0]
        worker.kill()  # a worker alone
        begun(scheduler, 3)
        lines = len(files.lines())
        files.open()
        files.heed(lines + 1)
        killed.kill()  # when the work is done: settled or not
    with node(url, tmp_path, *options):
        last = begun(scheduler, 4)  # or 5, when 4 had begun before the kill
        scheduler.cancel_job(last.id)
        last.wait(timeout=LIMIT)

    numbers = [number(job) for job in occurrences(scheduler)]
    assert first.refresh().status is Status.FAILED
    assert numbers == list(range(1, number(last) + 1))
    assert list(scheduler.get_jobs()) == []


def test_a_schedule_fires_on_time_and_ends(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    with node(url, tmp_path) as leading:
        leading.heed("leads the cluster")
        schedule = scheduler.schedule("trace", Trace, {"file": files.file}, every=QUICK, overlap="allow", max_runs=5)
        eventually(lambda: schedule.refresh().stage == "ended")
        files.heed(5)

    assert (schedule.fired, schedule.reason) == (5, "max_runs=5 is reached")
    assert len(slots(scheduler)) == 5


def test_a_schedule_that_counts_from_ends_goes_on_when_the_leader_is_killed(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    schedule = scheduler.schedule("trace", Trace, {"file": files.file}, every="0.2 s")
    for lines in (2, 4, 6):
        with node(url, tmp_path, "--name", "a", "--lease", "600") as leading:
            files.heed(lines)
            leading.kill()

    assert schedule.refresh().fired >= 4  # each of the two kills before may have let one run happen twice
    assert len(slots(scheduler)) == schedule.fired


def test_a_class_of_ones_own_is_asked_in_a_worker(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path) as leading:
        schedule = scheduler.schedule("own", Trace, {"file": files.file}, at=Custom(EVERY_OTHER, {"file": files.file}))
        lines = files.heed(4)
        family = {str(one.pid) for one in leading.family()} - {str(leading.pid)}
        assert eventually(lambda: schedule.refresh().fired >= 1)

    asked = {line.split()[-1] for line in lines if line.startswith("asked")}
    assert asked
    assert asked <= family


def test_schedules_go_on_after_a_flush(url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path) -> None:
    own = scheduler.schedule("own", Trace, {"file": files.file}, at=Custom(EVERY_OTHER, {"file": files.file}))
    assert scheduler.flush() == 1  # the question for its first time
    with node(url, tmp_path):
        data = {"file": files.file, "gate": files.gate()}
        ends = scheduler.schedule("ends", Gate, data, every="0.2 s", overlap="allow")
        eventually(lambda: [job for job in scheduler.get_jobs() if job.status is Status.PROCESSING and gated(job)])
        scheduler.flush()
        eventually(lambda: ends.refresh().fired >= 2)
        fired = own.refresh().fired
        eventually(lambda: own.refresh().fired > fired)

    assert (own.stage, ends.stage) == ("active", "active")


def test_two_that_believe_to_lead_make_one_job_of_each_firing(url: str) -> None:
    """A thousand firings, and more kills, are for ``python -m tests.chaos.leaders``."""
    count = contest(url, firings=300, leaders=2, kills=2, seed=1)

    assert count.complaints == []
    assert count.fired == 300


def begun(scheduler: Scheduler, wanted: int) -> Process:
    """Wait until it is known to the store that this occurrence runs, or a later one, and return it."""

    def look() -> list[Process]:
        pending = [job for job in scheduler.get_jobs() if number(job) >= wanted]
        return [job for job in pending if job.status is Status.PROCESSING and job.snapshot.started_at is not None]

    return eventually(look)[0]


def gated(job: Process) -> bool:
    return job.job.endswith(":Gate")


def occurrences(scheduler: Scheduler) -> list[Process]:
    """Return the occurrences of the one series that there is, in order."""
    return sorted(scheduler.get_jobs({"status": {"$gte": 0}}), key=number)


def number(job: Process) -> int:
    assert isinstance(job.snapshot.origin, Series)
    return job.snapshot.origin.occurrence


def slots(scheduler: Scheduler) -> set[datetime]:
    """Return the slots that have jobs."""
    found = [job.snapshot.origin for job in scheduler.get_jobs({"status": {"$gte": 0}})]
    assert all(isinstance(one, FromSchedule) for one in found)
    return {one.slot for one in found if isinstance(one, FromSchedule)}
