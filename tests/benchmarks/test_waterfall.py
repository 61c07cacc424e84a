"""The waterfall of a job: what the kernel has recorded becomes steps, whatever else the processes did meanwhile."""

from __future__ import annotations

import pytest

from benchmarks.waterfall import MARK, ROLES, SENDS, WAITS, calls_of, jobs_of, steps_of, table

pytestmark = pytest.mark.long

PIDS = dict(enumerate(ROLES, start=11))
HANDED_ON = [
    (11, MARK),
    (11, SENDS),
    (11, WAITS),
    (12, "exit_epoll_wait"),
    (12, "exit_epoll_wait"),  # a timer came first
    (12, SENDS),
    (13, "exit_epoll_wait"),
    (13, SENDS),
    (14, "exit_poll"),
    (14, SENDS),
    (13, "exit_epoll_wait"),
    (13, SENDS),
    (12, "exit_epoll_wait"),
    (12, SENDS),
    (11, "exit_poll"),
    (11, MARK),
]


def lines(calls: list[tuple[int, str]]) -> list[str]:
    """Return what ``perf script`` writes, one each 100 microseconds, and the call of another."""
    written = [
        f"{pid:5d} {50 + number / 10_000:.9f}: syscalls:sys_{name}: " for number, (pid, name) in enumerate(calls)
    ]
    return ["99 50.000000100: syscalls:sys_enter_sendto: ", "no call", *written]


def test_a_job_is_followed_from_hand_to_hand() -> None:
    [calls] = jobs_of(calls_of(lines(HANDED_ON), PIDS))
    steps = steps_of(calls)

    assert steps is not None
    assert list(table([steps])) == [
        "| application: handed on | 0.10 | 0.10 |",
        "| application: waits | 0.20 | 0.10 |",
        "| node: awake | 0.40 | 0.20 |",
        "| node: handed on | 0.50 | 0.10 |",
        "| manager: awake | 0.60 | 0.10 |",
        "| manager: handed on | 0.70 | 0.10 |",
        "| worker: awake | 0.80 | 0.10 |",
        "| worker: handed on | 0.90 | 0.10 |",
        "| manager: awake | 1.00 | 0.10 |",
        "| manager: handed on | 1.10 | 0.10 |",
        "| node: awake | 1.20 | 0.10 |",
        "| node: handed on | 1.30 | 0.10 |",
        "| application: awake | 1.40 | 0.10 |",
        "| application: has the result | 1.50 | 0.10 |",
    ]


def test_a_job_that_went_another_way_is_left_out() -> None:
    [calls] = jobs_of(calls_of(lines([one for one in HANDED_ON if one[0] != 13]), PIDS))

    assert steps_of(calls) is None
