"""Scripts that end without closing their scheduler: that ends them as it should, with words on how to close it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from taskqueue import Scheduler
scheduler = Scheduler(sys.argv[1])
process = scheduler.add_job("tests.acceptance.work:Echo", 3)
scheduler.run_pending()
print(process.wait(timeout=60).result)
"""


def test_a_script_that_leaves_its_scheduler_open_gets_one_warning(url: str) -> None:
    options = ["-X", "dev", "-W", "ignore::DeprecationWarning"]
    ran = subprocess.run([sys.executable, *options, "-c", SCRIPT, url], capture_output=True, text=True, timeout=60)

    assert (ran.returncode, ran.stdout) == (0, "3\n")
    assert "ResourceWarning: unclosed Scheduler on " in ran.stderr
    assert ran.stderr.count("unclosed") == 1, ran.stderr
