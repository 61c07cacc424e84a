"""A new page: the function, the template and the line of the contributing page, and everything else follows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import taskqueue
from tests.docs import pages

SCRIPT = """
import sys
from starlette.testclient import TestClient
from taskqueue import Job, Scheduler
from taskqueue.web import app

class Mail(Job):
    def start(self): ...

with Scheduler(sys.argv[1]) as scheduler:
    scheduler.add_job(Mail, tags=["news", "<b>"])
    with TestClient(app(scheduler, local=True), base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as browser:
        page = browser.get("/tags").text
        assert '<a href="/tags" aria-current="page">Tags</a>' in page, page
        assert '<a href="/jobs?tag=news">news</a>' in page
        assert "<b>" not in page
        part = browser.get("/tags", headers={"x-part": "content"}).text
        assert "news" in part and "<nav" not in part
"""


def test_the_page_of_the_example_is_shown_like_every_other(tmp_path: Path) -> None:
    page = Path(taskqueue.__file__).parents[1] / "docs/contributing.md"
    copied = tmp_path / "taskqueue"
    shutil.copytree(Path(taskqueue.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for block in pages.blocks(page):
        if block.mark.startswith("file: "):
            (copied / "web" / block.mark.removeprefix("file: ")).write_text(block.text)
    [line] = re.findall(r"`(Page\(.*\),)`", page.read_text())
    table = copied / "web/pages/__init__.py"
    old = '    Page(path="/audit"'
    assert old in table.read_text()
    imported = "from taskqueue.web.pages.tags import tags\nfrom taskqueue.web.view import Page\n"
    text = table.read_text().replace("from taskqueue.web.view import Page\n", imported)
    table.write_text(text.replace(old, f"    {line}\n{old}"))

    (tmp_path / "shop.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "shop.py", str(tmp_path / "jobs.db")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr
