"""The documentation works: what README and tutorial tell a reader to do, does what they say."""

from __future__ import annotations

import ast
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest
from bson import ObjectId

from taskqueue.cli import main, node
from taskqueue.store.open import open_store
from tests.docs import pages
from tests.servers import with_database

CHECKOUT = Path(__file__).parents[2]
PAGES = [*sorted(CHECKOUT.glob("*.md")), *sorted((CHECKOUT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(CHECKOUT)) for page in PAGES]
LONGEST = 300
"""The most lines of a page."""


FOLLOWED = [
    "README.md",
    "docs/tutorial.md",
    "docs/how-to/applications/analytics.md",
    "docs/how-to/jobs/asyncio-jobs.md",
    "docs/how-to/applications/asyncio.md",
    "docs/how-to/jobs/burst.md",
    "docs/how-to/jobs/crontab.md",
    "docs/how-to/operations/bulk-actions.md",
    "docs/how-to/operations/capacity.md",
    "docs/how-to/operations/dashboard.md",
    "docs/how-to/applications/events.md",
    "docs/how-to/operations/control-nodes.md",
    "docs/how-to/operations/logging.md",
    "docs/how-to/operations/notifications.md",
    "docs/how-to/jobs/immediate.md",
    "docs/how-to/jobs/meta.md",
    "docs/how-to/jobs/metrics.md",
    "docs/how-to/applications/django.md",
    "docs/how-to/applications/django-tests.md",
    "docs/how-to/applications/hooks.md",
    "docs/how-to/applications/opentelemetry.md",
    "docs/how-to/applications/outbox.md",
    "docs/how-to/applications/sentry.md",
    *(
        f"docs/how-to/applications/from-{name}.md"
        for name in ("apscheduler", "celery", "django-q", "dramatiq", "huey", "rq")
    ),
    "docs/ancestors/from-jobboy.md",
    "docs/ancestors/from-lzq.md",
    "docs/ancestors/from-php-task-scheduler.md",
    "docs/ancestors/from-recruiter.md",
    "docs/how-to/operations/production.md",
    "docs/how-to/operations/promises.md",
    "docs/how-to/jobs/readiness.md",
    "docs/how-to/jobs/schedules-as-code.md",
    "docs/how-to/jobs/stepwise.md",
    "docs/how-to/jobs/tasks.md",
    "docs/how-to/jobs/testing.md",
    "docs/how-to/operations/troubleshooting.md",
    "docs/how-to/jobs/types.md",
    "docs/how-to/jobs/unique-jobs.md",
    "docs/how-to/operations/upgrade.md",
    "docs/how-to/jobs/workflows.md",
]
PLAYED = [f"docs/how-to/operations/{name}.md" for name in ("cluster", "incidents-jobs", "incidents-store")]
"""Pages that a test of their own follows."""


def follow(name: str, folder: Path, meanings: Mapping[str, str]) -> None:
    """Do what the page says, and end what it started."""
    reader = pages.Reader(folder, meanings)
    try:
        reader.follow(list(pages.blocks(CHECKOUT / name)))
    finally:
        reader.close()


def each_day(name: str) -> bool:
    """Return whether the page is followed every day: those that a new reader meets, and those on jobs."""
    return name in ("README.md", "docs/tutorial.md") or name.startswith("docs/how-to/jobs/")


@pytest.mark.parametrize(
    "name", [name if each_day(name) else pytest.param(name, marks=pytest.mark.long) for name in FOLLOWED]
)
def test_a_reader_who_follows_the_page_sees_what_it_says(name: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    follow(name, tmp_path, {"127.0.0.1:8030": f"127.0.0.1:{port}"})


def test_the_tutorial_has_a_store_that_the_readme_does_not_share() -> None:
    page = list(pages.blocks(CHECKOUT / "docs/tutorial.md"))
    sets_store = ["TASKQUEUE_URL" in block.text for block in page if block.mark == "environment"]
    first_node = next(number for number, block in enumerate(page) if block.mark == "background")

    assert sets_store == [True]
    assert any(block.mark == "environment" for block in page[:first_node])
    assert not any("TASKQUEUE_URL" in block.text for block in pages.blocks(CHECKOUT / "README.md"))


def test_a_reader_gets_from_one_host_to_a_cluster(mongo_set: str, tmp_path: Path) -> None:
    database = with_database(mongo_set, f"docs-{ObjectId()}")
    open_store(str(tmp_path / "old.db")).close()  # what the reader has had until now
    follow("docs/how-to/operations/cluster.md", tmp_path, {"mongodb://db-1,db-2,db-3/shop?replicaSet=rs0": database})


def unexplained_commands(page: Path) -> Iterator[str]:
    """Commands that nobody runs say why."""
    if page not in [CHECKOUT / name for name in (*FOLLOWED, *PLAYED)]:
        yield from (block.text for block in pages.blocks(page) if block.language == "sh" and not block.mark)


def unknown_commands(page: Path) -> Iterator[str]:
    """Commands and options exist; the changelog names those of former versions."""
    if page.name != "changelog.md":
        yield from (written for written in commands_on(page) if not is_command(written))


def commands_on(page: Path) -> Iterator[str]:
    """Yield our command lines on a page, in its blocks and in its text."""
    text = page.read_text()
    for block in pages.blocks(page):
        if block.language == "sh":
            yield from re.findall(r"^(taskqueue(?:-node)? .*?)(?: #.*| [|>&].*)?$", block.text, re.MULTILINE)
    yield from re.findall(r"(?<!`)`(taskqueue(?:-node)? [^`\n]+)`(?!`)", re.sub(r"(?ms)^```.*?^```$", "", text))


def is_command(written: str) -> bool:
    """Return whether the command is there and has the options that are written."""
    program, *words = written.replace("…", " ").replace("--url ", "--url=").split()
    group = node.command if program == "taskqueue-node" else main.command
    known = set(long_options(group))
    names = [word for word in words if word[0] not in "-[<'\"" and word != "COMMAND"]
    with click.Context(main.command) as root:
        command = main.command.get_command(root, names[0]) if program == "taskqueue" and names else None
        if program == "taskqueue" and names and command is None:
            return False
        if command is not None:
            known |= set(long_options(command))
        for verb in names[1:]:
            part = command.get_command(root, verb) if isinstance(command, click.Group) else None
            if part is None:
                break
            known |= set(long_options(part))
            command = part
    asked = {re.split(r"[=\[\],.]", word)[0] for word in words if word.startswith("--")}
    return asked <= {*known, "--help", "--version"}


def long_options(command: click.Command) -> Iterator[str]:
    """Yield what a command understands."""
    for param in command.params:
        yield from (name for name in (*param.opts, *param.secondary_opts) if name.startswith("--"))


def wrong_python(page: Path) -> Iterator[str]:
    """Python is Python."""
    for block in pages.blocks(page):
        if block.language == "python":
            try:
                ast.parse(block.text)
            except SyntaxError as error:
                yield f"{error}: {block.text}"


def outdated_excerpts(page: Path) -> Iterator[str]:
    """An excerpt is in the file that it is from."""
    for block in pages.blocks(page):
        if block.mark.startswith("in: ") and block.text not in (CHECKOUT / block.mark.removeprefix("in: ")).read_text():
            yield block.text


def wrong_beginning(page: Path) -> Iterator[str]:
    """A page begins with a title and a sentence."""
    title, blank, first = page.read_text().split("\n")[:3]
    if not title.startswith("# ") or blank or not re.match(r"[A-Z`]", first):
        yield title


def excess_lines(page: Path) -> Iterator[str]:
    """A page is short enough to be read."""
    yield from page.read_text().splitlines()[LONGEST:]


def lost_links(page: Path) -> Iterator[str]:
    """Links lead somewhere."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    yield from (link for link in links if "://" not in link and not (page.parent / link).exists())


def anchors(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def lost_headings(page: Path) -> Iterator[str]:
    """Links into a page lead to a heading."""
    for path, heading in re.findall(r"\]\(([^):]*)#([^)]+)\)", page.read_text()):
        if heading not in anchors(page.parent / path if path else page):
            yield f"{path}#{heading}"


def missing_files(page: Path) -> Iterator[str]:
    """A file that a page names exists."""
    named = re.findall(r"`((?:taskqueue|tests|docs|bin|systemd)/[^` :]+)", page.read_text())
    yield from (path for path in named if "NAME" not in path and not (CHECKOUT / path).exists())


RULES: tuple[Callable[[Path], Iterator[str]], ...] = (
    *(unexplained_commands, unknown_commands, wrong_python, outdated_excerpts, wrong_beginning, excess_lines),
    *(lost_links, lost_headings, missing_files),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_page_keeps_the_rule(rule: Callable[[Path], Iterator[str]]) -> None:
    breaches = {name: list(rule(page)) for name, page in zip(NAMES, PAGES, strict=True)}

    assert {name: found for name, found in breaches.items() if found} == {}


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (unexplained_commands, "# A page\n\nText.\n\n```sh\ntaskqueue list\n```\n"),
        (unknown_commands, "Call `taskqueue lisst`.\n"),
        (unknown_commands, "Call `taskqueue list --colour`.\n"),
        (wrong_python, "# A page\n\nText.\n\n```python\nif\n```\n"),
        (outdated_excerpts, "# A page\n\nText.\n\n<!-- in: setup.cfg -->\n```ini\nnothing = of it\n```\n"),
        (wrong_beginning, "A page\n\nText.\n"),
        (wrong_beginning, "# A page\nText.\n\n"),
        (wrong_beginning, "# A page\n\nit has text.\n"),
        (excess_lines, "line\n" * (LONGEST + 1)),
        (lost_links, "See [there](nowhere.md).\n"),
        (lost_headings, "# A page\n\nSee [below](#below).\n"),
        (missing_files, "It is in `taskqueue/nowhere.py`.\n"),
    ],
)
def test_a_breach_on_a_page_is_seen(rule: Callable[[Path], Iterator[str]], text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)

    assert len(list(rule(page))) == 1


def test_the_files_that_a_new_option_touches_have_the_option_of_the_example() -> None:
    page = (CHECKOUT / "docs/contributing.md").read_text()
    _, section = page.split("## Add an option of jobs\n")
    carriers = re.findall(r"^\| `(\S+)` \|", section, re.MULTILINE)

    assert len(carriers) == 4
    assert [path for path in carriers if "crash_retries" not in (CHECKOUT / path).read_text()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, open_pages = set(), [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"]  # GitHub shows both
    while open_pages:
        page = open_pages.pop().resolve()
        if page in reached:
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)#]+\.md)[^)]*\)", page.read_text())
        open_pages += [page.parent / link for link in links if "://" not in link]
    assert [page for page in PAGES if page.resolve() not in reached] == []
