"""Runs the command ``taskqueue`` as ``python -m taskqueue``; the interpreter asks for a file of this name."""

import sys

from taskqueue.cli.entry import taskqueue

sys.exit(taskqueue())
