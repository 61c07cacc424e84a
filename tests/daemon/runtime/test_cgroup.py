"""The memory that the kernel allows this process, read from files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskqueue.daemon.runtime.cgroup import memory_limit, memory_use

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
        pytest.param("0::/", {"memory.max": "max"}, HOST, id="the host's for lack of a limit"),
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


@pytest.mark.parametrize(
    ("membership", "files", "use"),
    [
        pytest.param(
            "0::/a/b",
            {
                "a/b/memory.max": 8 * MIB,
                "a/b/memory.current": MIB,
                "a/memory.max": 9 * MIB,
                "a/memory.current": 8 * MIB,
            },
            (8 * MIB, 9 * MIB),
            id="the level above is fuller",
        ),
        pytest.param(
            "4:memory:/a",
            {"memory/a/memory.limit_in_bytes": 8 * MIB, "memory/a/memory.usage_in_bytes": MIB},
            (MIB, 8 * MIB),
            id="in version 1",
        ),
        pytest.param("4:memory:/a", {"memory/a/memory.limit_in_bytes": 2**63 - 4096}, None, id="none in version 1"),
        pytest.param("0::/a", {"a/memory.max": "max", "a/memory.current": MIB}, None, id="none"),
    ],
)
def test_the_fullest_level_is_named(
    tmp_path: Path, membership: str, files: dict[str, object], use: tuple[int, int] | None
) -> None:
    write(tmp_path, "proc/self/cgroup", f"{membership}\n")
    for name, value in files.items():
        write(tmp_path, f"cgroup/{name}", f"{value}\n")

    assert memory_use(tmp_path / "proc", tmp_path / "cgroup") == use
