"""The peers' own virtual environment, and the servers of Debian that they need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from benchmarks.peers.client import ROOT
from benchmarks.peers.servers import missing_packages

PLACE = ROOT / ".venv-peers"
PINNED = Path(__file__).with_name("requirements.txt")


def python(servers: Collection[str]) -> Path:
    """Return the interpreter of the environment, which is made first if it is not there or not of these versions."""
    _install_servers(servers)
    made_of = PLACE / "made-of"
    interpreter = PLACE / "bin" / "python"
    if not made_of.exists() or made_of.read_text() != PINNED.read_text():
        print(f"making {PLACE}: this takes a minute", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", PLACE], check=True)
        subprocess.run([interpreter, "-m", "pip", "install", "-q", "-r", PINNED, "-e", ROOT], check=True)
        made_of.write_text(PINNED.read_text())
    return interpreter


def _install_servers(servers: Collection[str]) -> None:
    missing = missing_packages(servers)
    if not missing:
        return
    if os.geteuid() != 0:
        sys.exit(f"install the servers first: sudo apt-get install {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing]
    subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=sys.stderr)
    subprocess.run(install, check=True, env=environment, stdout=sys.stderr)
