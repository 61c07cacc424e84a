"""The memory that the kernel allows this process, read from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskqueue.daemon.runtime.cgroup import memory_limit

HOST = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1024**2


def write(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("membership", "limits", "least"),
    [
        pytest.param("0::/a.slice/b.service", {"a.slice/b.service/memory.max": 96 * MIB}, 96 * MIB, id="its unit's"),
        pytest.param(
            "0::/a.slice/b.service",
            {"a.slice/b.service/memory.max": "max", "a.slice/memory.max": 64 * MIB},
            64 * MIB,
            id="of the slice above",
        ),
        pytest.param("0::/", {"memory.max": 48 * MIB}, 48 * MIB, id="its container's"),
        pytest.param("0::/docker/abc", {"memory.max": 48 * MIB}, 48 * MIB, id="its container's without a namespace"),
        pytest.param(
            "4:cpu,memory:/docker/abc", {"memory/memory.limit_in_bytes": 32 * MIB}, 32 * MIB, id="in version 1"
        ),
        pytest.param("0::/", {"memory.max": "max"}, HOST, id="the host's for want of a limit"),
        pytest.param("0::/", {"memory.max": 2**62}, HOST, id="the host's, which has less"),
        pytest.param("0::/", {"memory.max": "much"}, HOST, id="the host's if the file cannot be read"),
        pytest.param("", {}, HOST, id="the host's without a cgroup"),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, membership: str, limits: dict[str, object], least: int) -> None:
    write(tmp_path, "proc/self/cgroup", f"{membership}\n" if membership else "")
    for name, value in limits.items():
        write(tmp_path, f"cgroup/{name}", f"{value}\n")

    assert memory_limit(tmp_path / "proc", tmp_path / "cgroup") == least


def test_without_proc_the_host_counts(tmp_path: Path) -> None:
    assert memory_limit(tmp_path / "none", tmp_path / "none") == HOST
