"""What a node says of itself when it starts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from taskqueue.daemon.node.status import NodeStatus
from taskqueue.daemon.settings import Lead, Settings
from taskqueue.store.open import open_store


def banner(folder: Path, settings: Settings) -> list[str]:
    with closing(open_store(str(folder / "jobs.db"))) as store:
        return [" ".join(line.split()) for line in NodeStatus(settings).banner(store)]


def test_a_banner_says_what_is_promised_and_taken(tmp_path: Path) -> None:
    said = banner(tmp_path, Settings(name="web-1", queues={"mail": None, "reports": 2}))

    assert said[1:] == [
        f"store sqlite://{tmp_path}/jobs.db",
        "guarantee an acknowledged job survives a power cut (SQLite, synchronous=full)",
        "pool dynamic, 1 to 2 workers",
        "queues mail, reports (at most 2)",
    ]


def test_a_banner_names_what_keeps_a_node_from_jobs(tmp_path: Path) -> None:
    said = banner(tmp_path, Settings(lead=Lead.CLUSTER, allow=("shop.mail", "shop.reports")))

    assert said[-3:] == [
        "queues all",
        "lead works only while it leads the cluster",
        "allowed shop.mail, shop.reports",
    ]
