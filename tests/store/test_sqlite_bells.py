"""Bells of one host: sockets beside the database, which come and go with their listeners."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from taskqueue.errors import StoreUnavailable
from taskqueue.store import Note, Store
from taskqueue.store.bell import LONGEST_PATH, NEWS, STOPS, WORK, Bell, Doorbell, Ringer
from taskqueue.store.open import open_store
from tests.store.children import Child, in_child
from tests.store.records import HOUR, NOON, WEB_1, a_record, claim, postponed, rings


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"{tmp_path}/jobs.db")) as opened:
        yield opened


def bells(folder: Path) -> list[Path]:
    return list((folder / "jobs.db.bells").iterdir())


def test_a_listener_has_a_socket_as_long_as_it_listens(store: Store, tmp_path: Path) -> None:
    bell = store.bell(WORK)
    [path] = bells(tmp_path)
    assert path.is_socket()
    assert path.name.startswith(f"work-{os.getpid()}-")

    bell.close()

    assert bells(tmp_path) == []


def test_the_socket_of_a_dead_listener_is_removed_by_the_next_ring(store: Store, tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def listen() -> None:
        store.bell(NEWS)
        os.write(writing, b"!")
        signal.pause()

    child = Child(listen)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    assert len(bells(tmp_path)) == 1
    os.kill(child.pid, signal.SIGKILL)
    child.wait()

    store.add([a_record()])

    assert bells(tmp_path) == []


def test_a_topic_rings_its_own_listeners_only(tmp_path: Path) -> None:
    ringer = Ringer(tmp_path)
    work, news = Doorbell(tmp_path, WORK, 0o600), Doorbell(tmp_path, NEWS, 0o600)

    ringer.ring({WORK})
    ringer.ring({})

    assert rings(work)
    with pytest.raises(BlockingIOError):
        news._socket.recv(1)
    for each in (work, news, ringer):
        each.close()


def test_listeners_that_come_and_go_are_noticed(tmp_path: Path) -> None:
    ringer = Ringer(tmp_path)
    for _ in range(20):
        bell = Doorbell(tmp_path, WORK, 0o600)
        ringer.ring({WORK})
        assert rings(bell)
        bell.close()
        ringer.ring({WORK})
    ringer.close()


def test_a_folder_that_has_not_changed_is_read_once(tmp_path: Path) -> None:
    ringer = Ringer(tmp_path)
    bell = Doorbell(tmp_path, WORK, 0o600)
    yesterday = time.time() - 86_400
    os.utime(tmp_path, (yesterday, yesterday))
    for _ in range(3):
        ringer.ring({WORK})
        assert rings(bell)
    unseen = tmp_path / "work-1-hidden"
    unseen.touch()
    os.utime(tmp_path, (yesterday, yesterday))

    ringer.ring({WORK})

    assert rings(bell)
    bell.close()
    ringer.close()


def test_a_long_path_rings_too(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * LONGEST_PATH) / ("ü" * 60)
    folder.mkdir(parents=True)
    with closing(open_store(f"{folder}/jobs.db")) as store, closing(store.bell(WORK)) as bell:
        store.add([a_record()])

        assert rings(bell)


def test_what_is_no_socket_stops_nobody(store: Store, tmp_path: Path) -> None:
    with closing(store.bell(WORK)) as bell:
        (tmp_path / "jobs.db.bells" / "work-1-folder").mkdir()

        store.add([a_record()])

        assert rings(bell)


def test_a_socket_that_vanishes_stops_nobody(tmp_path: Path) -> None:
    ringer = Ringer(tmp_path)
    bell = Doorbell(tmp_path, WORK, 0o600)
    (tmp_path / "work-1-gone").symlink_to("nowhere")

    ringer.ring({WORK})

    assert rings(bell)
    bell.close()
    ringer.close()


def test_a_folder_that_takes_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "bells"
    with closing(Ringer(folder)) as ringer, closing(Doorbell(folder, WORK, 0o600)) as before:
        yesterday = time.time() - 86_400
        os.utime(folder, (yesterday, yesterday))
        ringer.ring({WORK})
        assert rings(before)
        folder.rename(tmp_path / "away")
        with closing(Doorbell(folder, WORK, 0o600)) as bell:
            ringer.ring({WORK})  # finds that the old sockets are gone
            ringer.ring({WORK})

            assert rings(bell)


def test_a_closed_ringer_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with closing(Ringer(tmp_path)) as ringer:
        ringer.ring({WORK})

    assert len(os.listdir("/proc/self/fd")) == before


def test_without_listeners_nothing_is_rung(tmp_path: Path) -> None:
    ringer = Ringer(tmp_path / "missing")

    ringer.ring({WORK})

    ringer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_unhang_the_bell_of_its_parent(store: Store, tmp_path: Path) -> None:
    bell = store.bell(WORK)

    in_child(bell.close)

    assert len(bells(tmp_path)) == 1
    store.add([a_record()])
    assert rings(bell)
    bell.close()


def test_a_full_bell_still_rings(tmp_path: Path) -> None:
    ringer = Ringer(tmp_path)
    with closing(Doorbell(tmp_path, WORK, 0o600)) as bell:
        for _ in range(2000):
            ringer.ring({WORK})
        assert rings(bell)
    ringer.close()


def test_every_byte_is_taken_at_once(tmp_path: Path) -> None:
    with closing(Doorbell(tmp_path, WORK, 0o600)) as bell:
        [path] = list(tmp_path.iterdir())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for _ in range(3):
                sender.sendto(b"!", str(path))

        bell.clear()

        with pytest.raises(BlockingIOError):
            bell._socket.recv(1)


def is_rung(bell: Bell) -> bool:
    """Return whether the bell has been rung, without waiting."""
    return bool(select.select([bell], [], [], 0)[0])


def test_a_claim_wakes_nobody_before_the_job_has_begun_for_good(store: Store, tmp_path: Path) -> None:
    store.add([a_record()])
    with closing(Doorbell(tmp_path / "jobs.db.bells", NEWS, 0o600)) as bell:
        [run] = claim(store).records

        assert not is_rung(bell)
        store.note(WEB_1, {run.id: Note(started_at=NOON)})
        assert is_rung(bell)


@pytest.mark.parametrize(("wanted", "expected"), [(2, False), (1, True)], ids=["all taken", "some left"])
def test_due_jobs_ring_only_for_what_their_claim_leaves(
    store: Store, tmp_path: Path, wanted: int, expected: bool
) -> None:
    store.add([postponed(NOON + HOUR), postponed(NOON + HOUR)])
    folder = tmp_path / "jobs.db.bells"
    with closing(Doorbell(folder, WORK, 0o600)) as work, closing(Doorbell(folder, NEWS, 0o600)) as news:
        assert len(claim(store, wanted, now=NOON + HOUR).records) == wanted

        assert [is_rung(work), is_rung(news)] == [expected, expected]


NOBODY = 65534


@pytest.mark.parametrize("whole_folder", [True, False], ids=["folder", "socket"])
def test_a_bell_that_was_removed_is_hung_anew_and_told_of(
    store: Store, tmp_path: Path, whole_folder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(store.bell(WORK)) as bell:
        assert not bell.renew()
        [path] = bells(tmp_path)
        if whole_folder:
            shutil.rmtree(path.parent)
        else:
            path.unlink()

        assert bell.renew()

        store.add([a_record()])
        assert rings(bell)
        assert f"the bell {path} was removed" in caplog.text
        assert not bell.renew()
    assert bells(tmp_path) == []


def test_a_store_for_whose_bells_no_descriptor_is_left_names_the_limit(tmp_path: Path) -> None:
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(StoreUnavailable, match=r"Too many open files.*: raise the limit: LimitNOFILE"):
            Ringer(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("spare", [0, 1])
def test_a_bell_for_which_no_descriptor_is_left_names_the_limit(store: Store, spare: int) -> None:
    store.bell(WORK).close()  # imports what it needs
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, hard))
    try:
        with pytest.raises(StoreUnavailable, match=r"Too many open files.*: raise the limit: LimitNOFILE"):
            store.bell(WORK)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_bell_that_cannot_be_hung_anew_is_told_of_once(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(store.bell(WORK)) as bell:
        folder = tmp_path / "jobs.db.bells"
        shutil.rmtree(folder)
        folder.touch()

        assert not bell.renew()
        assert not bell.renew()
        assert caplog.text.count("no bell can be created there") == 1

        folder.unlink()
        assert bell.renew()


def test_bells_of_the_dead_are_swept_by_whoever_hangs_one(store: Store, tmp_path: Path) -> None:
    with closing(store.bell(NEWS)):
        living = bells(tmp_path)
        for number in range(9):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
                dead.bind(f"{tmp_path}/jobs.db.bells/{STOPS}-1-{number}")

        with closing(store.bell(WORK)) as bell:
            assert {path.name.partition("-")[0] for path in bells(tmp_path)} == {WORK, NEWS}
            assert len(bells(tmp_path)) == 2
            assert not is_rung(bell)
        assert bells(tmp_path) == living


def test_nothing_but_sockets_is_removed(store: Store, tmp_path: Path) -> None:
    with closing(store.bell(WORK)) as bell:
        report = tmp_path / "jobs.db.bells" / "work-report.txt"
        report.write_text("of the year")

        store.add([a_record()])
        store.bell(WORK).close()

        assert rings(bell)
        assert report.read_text() == "of the year"


def test_a_link_in_the_place_of_the_bells_is_not_followed(store: Store, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as strange:
        strange.bind(f"{elsewhere}/work-1-1")
        (tmp_path / "jobs.db.bells").symlink_to(elsewhere)

        with pytest.raises(StoreUnavailable, match="no bell can be created there"):
            store.bell(WORK)
        store.add([a_record()])

        with pytest.raises(BlockingIOError):
            strange.recv(1)
    assert [path.name for path in elsewhere.iterdir()] == ["work-1-1"]


@pytest.mark.parametrize(("place", "is_used"), [(0o1777, False), (0o755, True)], ids=["everybody's", "ours"])
def test_a_folder_of_another_user_is_used_where_only_the_owner_could_have_let_it_in(
    store: Store, tmp_path: Path, place: int, is_used: bool
) -> None:
    folder = tmp_path / "jobs.db.bells"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    tmp_path.chmod(place)

    heard = False
    with suppress(StoreUnavailable), closing(store.bell(WORK)) as bell:
        store.add([a_record()])
        heard = rings(bell)

    assert heard is is_used
    tmp_path.chmod(0o700)
