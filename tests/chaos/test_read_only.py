"""A node in a container that can write to nothing but its store: no runtime folder, no /tmp, a user without a name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.counting import uncounted
from tests.nodes import LIMIT

SEALED = r"""
set -eu
store=$1 bin=$2
shift 2
mount --make-rprivate /
mount -t tmpfs none "$store"
mount -o remount,bind,ro /
for folder in /tmp /var/tmp /run /dev/shm; do
    if mountpoint -q "$folder"; then mount -o remount,bind,ro "$folder"; fi
done
! touch /tmp/writable 2>/dev/null
unset TASKQUEUE_RUNTIME_DIR  # the folder of the other tests' nodes
export TASKQUEUE_URL=sqlite:///$store/jobs.db RUNTIME_DIRECTORY=/run/taskqueue HOME=/nonexistent
cd "$store"
"$@" "$bin/taskqueue-node" --name web-1 --pm static --min-children 1 2>log &
until "$@" "$bin/taskqueue" health --live >health 2>&1; do kill -0 $! || { cat log; exit 1; }; sleep 0.2; done
"$@" "$bin/taskqueue" add taskqueue:ShellJob --data '{"argv": ["id", "--user"]}' --wait
"$@" "$bin/taskqueue" health --node web-1
kill $!
wait $!
cat log
"""
"""Makes every file system read-only but one for the store, and has a node there answer its probes and run a job."""


def any_user() -> list[str]:
    """Return the command that starts another one for a user who owns nothing; it may read the checkout."""
    reads = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    return ["setpriv", "--reuid=54321", "--regid=0", "--clear-groups", *reads] if os.getuid() == 0 else []


def test_a_node_that_can_write_to_its_store_alone_runs_jobs_and_answers_its_probes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    spaces = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    command = [*spaces, "bash", "-c", SEALED, "sealed", str(store), str(Path(sys.executable).parent), *any_user()]

    ran = subprocess.run(command, env=uncounted(), capture_output=True, text=True, timeout=3 * LIMIT)

    assert ran.returncode == 0, ran
    assert "web-1: live, ready" in ran.stdout
    assert '"exit_code":0' in ran.stdout
    assert "its control socket is @taskqueue-" in ran.stdout
