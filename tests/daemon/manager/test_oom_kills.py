"""An OOM kill is told apart from others by the counters of the kernel, which lie in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskqueue.daemon.manager.crash_outcomes import OomKills
from taskqueue.daemon.protocol.messages import EndKind

OURS = "the kernel killed it for lack of memory"
NOT_OURS = "a process killed it, perhaps itself: the kernel made no OOM kill in its cgroup"


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("membership", "counter"),
    [
        ("0::/system.slice/taskqueue.service\n", "system.slice/taskqueue.service/memory.events"),
        ("0::/\n", "memory.events"),
        ("4:memory:/docker/abc\n0::/\n", "memory/docker/abc/memory.oom_control"),
        ("4:cpu,memory:/docker/abc\n0::/\n", "memory/memory.oom_control"),
        ("4:memory:/a\n0::/a\n", "unified/a/memory.events"),
    ],
)
def test_the_counter_of_the_own_cgroup_decides(tmp_path: Path, membership: str, counter: str) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, "self/cgroup", f"3:cpuset:/x\n{membership}")
    write(proc, "vmstat", "oom_kill 7\n")
    write(cgroups, counter, "oom 3\noom_kill 3\n")
    kills = OomKills(proc, cgroups)

    assert kills.explain_kill().words.startswith(NOT_OURS)
    write(proc, "vmstat", "oom_kill 8\n")
    assert kills.explain_kill().words.startswith(NOT_OURS)
    write(cgroups, counter, "oom 4\noom_kill 4\n")
    ours = kills.explain_kill()
    assert ours.words.startswith(OURS)
    assert ours.kind is EndKind.OUT_OF_MEMORY
    assert kills.explain_kill().words.startswith(NOT_OURS)
    write(cgroups, counter, "oom_kill 5\n")
    kills.reset()
    assert kills.explain_kill().words.startswith(NOT_OURS)


def test_without_a_cgroup_the_counter_of_the_host_says_what_it_can(tmp_path: Path) -> None:
    write(tmp_path, "self/cgroup", "0::/\n")
    write(tmp_path, "vmstat", "nr_free_pages 1\noom_kill 7\n")
    kills = OomKills(tmp_path, tmp_path / "none")

    assert kills.explain_kill().words == "a process killed it, perhaps itself: the kernel made no OOM kill on this host"
    write(tmp_path, "vmstat", "oom_kill 8\n")
    assert kills.explain_kill().words.endswith("probably this one")


def test_without_any_counter_nobody_knows(tmp_path: Path) -> None:
    assert (
        OomKills(tmp_path, tmp_path).explain_kill().words
        == "a process killed it, perhaps itself, or the kernel did for lack of memory"
    )
