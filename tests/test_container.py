"""Files for containers and Kubernetes, and a node as process 1 of a container, which here is a PID namespace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import psutil
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from taskqueue import Scheduler
from taskqueue.cli.node import command as node_command
from taskqueue.cli.node_options import settings_from
from taskqueue.cli.web import web_command
from taskqueue.daemon.settings import Settings
from taskqueue.model.record import Status
from tests.nodes import LIMIT, eventually
from tests.promtool import promtool

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
NAMESPACE = (
    "unshare",
    *(() if os.geteuid() == 0 else ("--user", "--map-root-user")),
    "--fork",
    "--pid",
    "--mount-proc",
)


KUBERNETES = ROOT / "docs/how-to/operations/kubernetes.md"
CUSTOM = {"ScaledObject": "keda.sh/v1alpha1", "PodMonitor": "monitoring.coreos.com/v1"}
"""Kinds that Kubernetes itself does not have, and their versions."""

MANIFESTS: dict[tuple[str, str], dict[str, Any]] = {
    (manifest["kind"], manifest["metadata"]["name"]): manifest
    for manifest in map(
        yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", KUBERNETES.read_text(), re.MULTILINE | re.DOTALL)
    )
}

DEPLOYMENTS = {key: manifest for key, manifest in MANIFESTS.items() if key[0] == "Deployment"}


def compose_file() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return found


def services() -> dict[str, Any]:
    found: dict[str, Any] = compose_file()["services"]
    return found


def node_settings(options: Iterable[str]) -> Settings:
    """Return the settings of a node with these options."""
    with node_command.make_context("taskqueue-node", list(options)) as parsed:
        return settings_from(
            {name: value for name, value in parsed.params.items() if not name.startswith(("config", "log_", "version"))}
        )


def test_a_linter_has_nothing_to_say_of_the_dockerfile() -> None:
    linted = subprocess.run(
        [PROGRAMS / "hadolint", "--no-color", "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_image_holds_what_an_installation_needs_and_runs_as_a_user_of_its_own() -> None:
    text = (ROOT / "Dockerfile").read_text()

    assert "COPY taskqueue taskqueue" in text
    assert 'ENTRYPOINT ["taskqueue-node"]' in text
    assert 'CMD ["taskqueue", "health", "--live"]' in text
    assert text.index("USER 10001") > text.rindex("RUN ")
    assert {"tests", ".git", ".venv"} <= set((ROOT / ".dockerignore").read_text().split())


def test_the_settings_of_the_compose_file_are_understood() -> None:
    node = services()["node"]
    settings = node_settings(node["command"])

    assert settings.max_children == 8
    assert settings.max_memory > 0
    assert float(node["stop_grace_period"].rstrip("s")) > settings.finish + settings.grace + 5
    assert node["depends_on"]["mongodb"]["condition"] == "service_healthy"


def test_the_nodes_of_the_compose_file_use_its_replica_set() -> None:
    found = services()
    server, url = found["mongodb"], urlsplit(found["node"]["environment"]["TASKQUEUE_URL"])
    command, look = server["command"][-1].split(), server["healthcheck"]["test"][-1]
    user, password = (server["environment"][f"MONGO_INITDB_ROOT_{name}"] for name in ("USERNAME", "PASSWORD"))

    assert f"{url.scheme}://{url.netloc}" == f"mongodb://{user}:{password}@mongodb:27017"
    assert parse_qs(url.query) == {"replicaSet": [command[command.index("--replSet") + 1]], "authSource": ["admin"]}
    assert 'host: "mongodb:27017"' in look
    assert f'getSiblingDB("admin").auth("{user}", process.env.MONGO_INITDB_ROOT_PASSWORD)' in look
    key = command[command.index("--keyFile") + 1]
    assert {f">{key};", f"{key};"} <= set(command), "the server of a set with users refuses to start without a key"


def test_the_nodes_on_postgresql_of_the_compose_file_use_its_server() -> None:
    found = services()
    server, node = found["postgresql"], found["node-postgresql"]
    address = conninfo_to_dict(node["environment"]["TASKQUEUE_URL"])

    assert (address["host"], address["user"]) == ("postgresql", server["environment"]["POSTGRES_USER"])
    assert address["dbname"] == server["environment"]["POSTGRES_DB"]
    assert list(node["depends_on"]) == ["postgresql"]
    assert node["profiles"] == server["profiles"]
    assert node["command"] == found["node"]["command"]


def test_dashboard_and_metrics_of_the_compose_file_are_served_to_this_host_only() -> None:
    found = services()

    with web_command.make_context("web", found["dashboard"]["command"][1:]) as parsed:
        assert parsed.params["hosts"] == ("localhost",)
    assert found["dashboard"]["environment"]["TASKQUEUE_URL"] == found["node"]["environment"]["TASKQUEUE_URL"]
    for service in found.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_promtool_is_content_with_the_metrics_of_the_compose_file(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(compose_file()["configs"]["prometheus"]["content"])
    (tmp_path / "alerts.yml").write_bytes((ROOT / "docs/monitoring/alerts.yml").read_bytes())

    checked = subprocess.run(
        [promtool(), "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "port: 9464" in compose_file()["configs"]["prometheus"]["content"]
    assert node_settings(services()["node"]["command"]).metrics == "0.0.0.0:9464"


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=map("-".join, MANIFESTS))
def test_a_manifest_is_valid(manifest: dict[str, Any]) -> None:
    if manifest["kind"] in CUSTOM:
        assert manifest["apiVersion"] == CUSTOM[manifest["kind"]]
    else:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_manifests_name_each_other_and_what_a_node_understands() -> None:
    templates = {name: manifest["spec"]["template"] for (_, name), manifest in DEPLOYMENTS.items()}
    apps = {template["metadata"]["labels"]["app"] for template in templates.values()}
    node, dashboard = (templates[name]["spec"] for name in ("shop-node", "shop-jobs"))
    settings = node_settings(node["containers"][0]["args"])
    with web_command.make_context("web", dashboard["containers"][0]["args"][1:]) as parsed:
        assert parsed.params["users"] == Path("/users/users.json")

    for kind in ("ScaledObject", "HorizontalPodAutoscaler"):
        assert ("Deployment", MANIFESTS[kind, "shop-node"]["spec"]["scaleTargetRef"]["name"]) in DEPLOYMENTS
    assert MANIFESTS["PodMonitor", "shop-node"]["spec"]["selector"]["matchLabels"]["app"] in apps
    assert MANIFESTS["Service", "shop-jobs"]["spec"]["selector"]["app"] in apps
    assert node["terminationGracePeriodSeconds"] >= settings.finish + settings.grace + 10
    assert settings.metrics == f"0.0.0.0:{node['containers'][0]['ports'][0]['containerPort']}"
    for pod in (node, dashboard):
        mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in pod["volumes"]}
        assert pod["securityContext"]["runAsNonRoot"]


def test_the_object_of_keda_scales_as_the_autoscaler_of_kubernetes_on_the_page() -> None:
    """KEDA takes the behavior of an autoscaler as Kubernetes has it, and text alone in the metadata of a trigger."""
    scaled, autoscaler = (MANIFESTS[kind, "shop-node"]["spec"] for kind in ("ScaledObject", "HorizontalPodAutoscaler"))
    triggers = [
        {
            "type": "prometheus",
            "metricType": metric["external"]["target"]["type"],
            "metadata": {
                "serverAddress": "http://prometheus.monitoring:9090",
                "query": trigger["metadata"]["query"],
                "threshold": [*metric["external"]["target"].values()][1],
            },
        }
        for trigger, metric in zip(scaled["triggers"], autoscaler["metrics"], strict=True)
    ]

    assert all(isinstance(value, str) for trigger in triggers for value in trigger["metadata"].values())
    assert scaled == {
        "scaleTargetRef": {"name": autoscaler["scaleTargetRef"]["name"]},
        "minReplicaCount": autoscaler["minReplicas"],
        "maxReplicaCount": autoscaler["maxReplicas"],
        "pollingInterval": 15,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": autoscaler["behavior"]}},
        "triggers": triggers,
    }


@contextmanager
def container(url: str, folder: Path, *options: str) -> Iterator[psutil.Process]:
    """Start a node as process 1 of a PID namespace of its own, and yield it."""
    command = [*NAMESPACE, "--kill-child", PROGRAMS / "taskqueue-node", "--url", url, *options]
    with (folder / "node.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        [node] = eventually(psutil.Process(started.pid).children)
        yield node
        assert started.wait(LIMIT) == 0, (folder / "node.log").read_text()
    finally:
        started.kill()
        started.wait(LIMIT)


def inside(node: psutil.Process, *command: str) -> None:
    """Run the command in the node's namespace, as "docker exec" does."""
    user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    subprocess.run(["nsenter", "--target", str(node.pid), "--pid", *user, *command], check=True, timeout=LIMIT)


def statuses(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the status of each process that has not been reaped since it was found."""
    found: list[str] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(process.status())
    return found


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_as_process_1_a_node_runs_jobs_reaps_orphans_and_heeds_signals(tmp_path: Path, signum: int) -> None:
    url = f"sqlite://{tmp_path}/jobs.db"
    with Scheduler(url) as scheduler, container(url, tmp_path, "--max-children", "1") as node:
        done = scheduler.add_job("taskqueue:ShellJob", {"argv": ["sh", "-c", "echo $PPID; (sleep 0.01 &)"]})
        done.wait(LIMIT)
        assert int(done.result["stdout"]) < 100, "the job ran in the namespace"

        inside(node, "sh", "-c", "(sh -c 'exit 3' &); exit 0")
        eventually(lambda: statuses(node.children()) == [psutil.STATUS_SLEEPING])

        waiting = scheduler.add_job("taskqueue:ShellJob", {"argv": ["sleep", "1000"]})
        eventually(lambda: waiting.refresh().status is Status.PROCESSING)
        os.kill(node.pid, signum)
        eventually(lambda: not node.is_running())
        assert waiting.refresh().status is Status.WAITING, "it was interrupted and waits again"
