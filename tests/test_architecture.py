"""The layers, the doors to other packages, and the words and calls that must not appear anywhere."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path

import pytest

from tests import words
from tests.covers import COVERS

CHECKOUT = Path(__file__).resolve().parent.parent

TOP = {
    *("taskqueue", "benchmarks", "bin", "systemd", "tests", "docs"),
    *(
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE",
        "MANIFEST.in",
        "setup.cfg",
        "pyproject.toml",
        "Dockerfile",
        "compose.yaml",
    ),
}

# A layer imports itself and what stands on an earlier line.
LAYERS = (
    ("errors", "exit_codes"),
    ("model",),
    ("store",),
    ("insight", "execution"),
    ("scheduler",),
    ("otel", "retry", "outbox", "notifications"),
    ("daemon",),
    ("web",),
    ("cli", "testing"),
    ("django",),
    ("__main__",),
)
# Layers that go through another one, whatever their rank allows.
CLOSED_TO = {"web": {"store", "execution", "daemon"}}
RANKS = {layer: rank for rank, line in enumerate(LAYERS) for layer in line}

# The processes of the daemon: each imports what all share, and of the others only what it forks.
PROCESSES = ("manager", "node", "worker")
FORKS = {
    "taskqueue/daemon/node/start.py": "taskqueue.daemon.manager.manager.fork_manager",
    "taskqueue/daemon/manager/workers.py": "taskqueue.daemon.worker.",
}

# The only files (or folders) that may import a package which is not Python's own.
DOORS = {
    "asgiref": ("taskqueue/django/",),
    "argon2": ("taskqueue/web/users.py",),
    "bson": ("taskqueue/model/", "taskqueue/store/"),
    "click": ("taskqueue/cli/",),
    "cron_descriptor": ("taskqueue/web/words.py",),
    "croniter": ("taskqueue/model/schedules/cron.py",),
    "django": ("taskqueue/django/",),
    "django_tasks": ("taskqueue/django/backend.py",),
    "jinja2": ("taskqueue/web/rendering.py",),
    "jsonschema": ("taskqueue/web/api/route.py",),
    "markupsafe": ("taskqueue/web/words.py",),
    "msgspec": ("taskqueue/daemon/protocol/", "taskqueue/execution/run.py"),
    "prometheus_client": ("taskqueue/daemon/node/metrics.py",),
    "opentelemetry": ("taskqueue/otel.py",),
    "psycopg": ("taskqueue/store/postgresql/",),
    "psutil": ("taskqueue/daemon/runtime/child_process.py",),
    "pytest": ("taskqueue/testing/fixtures.py",),
    "pymongo": ("taskqueue/store/mongodb/",),
    "rich": ("taskqueue/cli/terminal.py",),
    "setproctitle": ("taskqueue/daemon/runtime/child_process.py",),
    "starlette": ("taskqueue/web/",),
    "tomli": ("taskqueue/cli/",),
    "uvicorn": ("taskqueue/web/server.py",),
    "watchfiles": ("taskqueue/cli/run.py",),
    "textual": ("taskqueue/cli/top/",),
    "typing_extensions": ("taskqueue/",),
}
DRIVERS = {"sqlite3", "pymongo", "psycopg"}
ENGINES = ("taskqueue.store.sqlite", "taskqueue.store.mongodb", "taskqueue.store.postgresql")
# The calls of a store that only read it, and its facts.
READING = {
    *("alike", "audit", "controls", "count", "diagnose", "events_of", "find", "guarantee", "history", "leases"),
    *(
        "cursor_at",
        "limit_usage",
        "log_lines",
        "now",
        "present",
        "samples",
        "schedules",
        "tally",
        "url",
        "waiting_lanes",
        "waiting_since",
    ),
    *("disagreeing", "due", "postponed", "rate_ends", "strains"),
}
PICKLERS = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
MOCKS = {"mock", "pytest_mock", "unittest"}
TEST_CASES = {"unittest.TestCase", "unittest.IsolatedAsyncioTestCase"}
"""What tests of the mixin for unittest import; it mocks nothing."""
SHAPELESS = {"common", "helper", "helpers", "misc", "util", "utils"}
# Words that the glossary (docs/reference/glossary.md) replaced; no file, class, function or variable has one.
RETIRED = """
abandoned agenda alarm appetite assignment census chronicle consequence consequences crew departure despair dissolve
duties enlist enlisted evidence farewell fleet foresight hire holdings hopeless impose intake ladder ledger lift
mend mishap mishaps newborn newcomers news nobody oversight patience presence repertoire slate somebody staff
succession swap swaps takers telling tenure ticket tickets told untaken verdict who whoever wish
"""
STORED = {"NEWS"}
"""Names after a word that stores keep."""

LONGEST = 800
"""The most lines of a file of the package: a file is as large as its idea, and more than this is two ideas."""

LONGEST_FUNCTION = 50
"""The most lines of a function, with its docstring."""

MOST_PARAMETERS = 8
"""The most parameters of a function. Keyword-only options of the public API and of commands are not counted."""

PUBLIC_OPTIONS = {"taskqueue/scheduler/schedule_api.py:schedule", "taskqueue/web/application.py:app"}
MANY_PARAMETERS = {"taskqueue/web/api/route.py:__init__": 9}
"""Functions that have more, and how many; these numbers only fall."""

MOST_FILES, MOST_CODE_LINES, MOST_IMPORTS = 462, 58_450, 0.125
"""Files and code lines of the package, without blank lines, comments and docstrings, and the share of imports in them.

They rise only with a line here that says what for. 40,000 lines in 370 files are the aim. Raised by fair queues, waits
of jobs for themselves, shares of the dashboard, the repair of derived fields, immediate mode, bursts and a relational
store with engines, the fan-out of rings, Django projects, tests with unittest, tasks that know their job, dialects of
cron, words of other systems, schedules that an application declares, the version in a file, the dashboard in a site,
judged failures, notifications, crontabs that are imported, what `why` learns from limits, workers and nodes,
ids of an application, outboxes, one filter for all faces,
bulk actions in stages,
claims that ask PostgreSQL once about all limits,
and operations that are declared once for all faces,
tasks of Django within their transaction,
pages of classes and queues,
metrics of jobs,
reports to Sentry,
lines of structlog,
states of failures,
marks of releases,
names of tasks for people,
warnings of direct calls,
keys, selected rows and sorted columns of the dashboard,
reports and bulk actions over HTTP,
concurrent workers that are replaced while they have jobs,
figures of yesterday and the next day,
mistakes that are answered with a way out,
jobs that are given up,
workflows whose failed part runs again,
adds to an outbox that are awaited,
memory and processors of nodes,
settings of Python that jobs change,
lists of workflows,
jobs in the admin of Django, sessions that are refused with a way out,
users of the dashboard who do not delay each other,
promises of classes with their error budget and metrics, a form for limits, findings about the store, clocks and
progress, log files that fail, lines of the log between those of jobs, terminals that are closed or read,
managers that end while others have their channel,
forms for waiting jobs and schedules, bounded searches of jobs, limits in lists,
rows that many new jobs share, counts that processes of MongoDB take over,
claims and outcomes of PostgreSQL nodes that share the lock, metrics of limits, forms of schedules that end, tasks of
Django by their own path, more mistakes that are answered, and timers and busy threads that jobs leave.
"""

CODE = re.compile(r"\b(?:GZ|JB|JW|LW|LZQ|PTS|PW|REC|RW|X)-\d+\b")
SKIPS = {"importorskip", "skip", "skipif", "xfail"}


@dataclass(frozen=True)
class Source:
    """One Python file: where it is in the checkout and what it says."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree: several rules walk over them."""
        return tuple(ast.walk(self.tree))

    @property
    def in_tests(self) -> bool:
        return self.path.startswith("tests/")

    @property
    def layer(self) -> str | None:
        """The part of the package it belongs to, or None for tests and the package's own ``__init__``."""
        parts = Path(self.path).with_suffix("").parts
        return parts[1] if parts[0] == "taskqueue" and parts[1] != "__init__" else None

    @cache  # noqa: B019 - the sources stay until the tests end
    def imports(self) -> tuple[tuple[int, str], ...]:
        """Return line and dotted name of everything imported, also inside functions."""
        return tuple(self._imports())

    def _imports(self) -> Iterator[tuple[int, str]]:
        package = Path(self.path).parts[:-1]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else ()
                module = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)

    @property
    def run_time_imports(self) -> Iterator[str]:
        """The dotted names of everything imported, but for what only the type checker imports."""
        typed = {
            statement
            for node in self.nodes
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for line in node.body
            for statement in range(line.lineno, (line.end_lineno or line.lineno) + 1)
        }
        return (name for line, name in self.imports() if line not in typed)

    def defined(self) -> Iterator[tuple[int, str]]:
        """Yield line and name of every class, function, argument, variable and attribute that is set."""
        for node in self.nodes:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    yield node.lineno, name
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    yield node.lineno, name

    @cache  # noqa: B019 - the sources stay until the tests end
    def names(self) -> tuple[tuple[int, str], ...]:
        """Return line and dotted text of every name and attribute that is used."""
        return tuple((node.lineno, dotted(node)) for node in self.nodes if isinstance(node, (ast.Name, ast.Attribute)))


def dotted(node: ast.expr) -> str:
    """Return the text of a name or attribute, with ``?`` for what else an attribute may be taken from."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return "?"


def against_the_layers(source: Source) -> Iterator[str]:
    """Imports go down the line of layers, never up and never across."""
    if source.layer is None:
        return
    if source.layer not in RANKS:
        yield f"{source.path}: no layer is called {source.layer}: put the file into one of {', '.join(RANKS)}"
        return
    for line, name in source.imports():
        top, _, rest = name.partition(".")
        layer = rest.partition(".")[0]
        if top != "taskqueue" or layer == source.layer:
            continue
        if layer not in RANKS:
            yield f"{source.path}:{line}: inside the package, import {name} from the file that defines it"
        elif RANKS[layer] >= RANKS[source.layer] or layer in CLOSED_TO.get(source.layer, ()):
            yield f"{source.path}:{line}: {source.layer} must not import {layer}"


def across_processes(source: Source) -> Iterator[str]:
    """What node, manager and worker share is in files of neither; each imports of another only what it forks."""
    if source.layer != "daemon":
        return
    own, forks = Path(source.path).parts[2], FORKS.get(source.path)
    for line, name in source.imports():
        process = name.removeprefix("taskqueue.daemon.").partition(".")[0]
        is_other = name.startswith("taskqueue.daemon.") and process in PROCESSES and process != own
        if is_other and (forks is None or not name.startswith(forks)):
            yield f"{source.path}:{line}: imports {name} of another process: what both need goes to daemon/runtime"


def past_the_doors(source: Source) -> Iterator[str]:
    """Each package of others is imported in one place."""
    if source.in_tests:
        return
    for line, name in source.imports():
        top = name.partition(".")[0]
        if top == "taskqueue" or top in sys.stdlib_module_names:
            continue
        if top not in DOORS:
            yield f"{source.path}:{line}: {top} has no door: it is not a dependency that was decided on"
        elif not source.path.startswith(DOORS[top]):
            yield f"{source.path}:{line}: {top} is imported in {' and '.join(DOORS[top])} only"


def past_the_engine(source: Source) -> Iterator[str]:
    """What decides in every relational store imports no engine and no driver."""
    if not source.path.startswith("taskqueue/store/relational/"):
        return
    for line, name in source.imports():
        if name.startswith(ENGINES) or name.partition(".")[0] in DRIVERS:
            yield f"{source.path}:{line}: ask the engine (taskqueue/store/relational/engine.py) in place of {name}"


def pickling(source: Source) -> Iterator[str]:
    """Nothing is ever pickled: what crosses a process is text."""
    for line, name in source.imports():
        if name.partition(".")[0] in PICKLERS:
            yield f"{source.path}:{line}: imports {name}"
        if name.startswith(("multiprocessing.Queue", "multiprocessing.Pool", "multiprocessing.managers")):
            yield f"{source.path}:{line}: {name} pickles"


def sleeping(source: Source) -> Iterator[str]:
    """The daemon waits for descriptors and deadlines."""
    if source.layer != "daemon":
        return
    for line, name in (*source.imports(), *source.names()):
        if name == "time.sleep":
            yield f"{source.path}:{line}: sleeps"


def writing(source: Source) -> Iterator[str]:
    """Insight reads a store and never writes to it."""
    if source.layer != "insight":
        return
    for line, name in source.names():
        owner, _, method = name.rpartition(".")
        if owner.rpartition(".")[2] in {"store", "_store"} and method not in READING:
            yield f"{source.path}:{line}: {name} is none of the calls that only read a store"


def shapeless(source: Source) -> Iterator[str]:
    """A file is named after the one thing it holds."""
    if SHAPELESS & {part.removesuffix(".py") for part in Path(source.path).parts}:
        yield f"{source.path}: name it after what is in it"


def retired(source: Source) -> Iterator[str]:
    """Files, classes, functions and variables of the package are named in the words of the glossary."""
    if source.in_tests:
        return
    for line, name in ((1, Path(source.path).stem), *source.defined()):
        words = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
        for word in words.intersection(RETIRED.split()) if name not in STORED else ():
            yield f"{source.path}:{line}: {name} has the retired word {word}: see docs/reference/glossary.md"


def quoting_codes(source: Source) -> Iterator[str]:
    """The package states its rules in words, not by codes of a specification that its readers do not have."""
    if source.in_tests:
        return
    for number, line in enumerate(source.text.splitlines(), 1):
        for code in CODE.findall(line):
            yield f"{source.path}:{number}: {code} stands for a rule: state it in words"


def unopened(source: Source) -> Iterator[str]:
    """A file opens with one sentence that says what it is for."""
    first = (ast.get_docstring(source.tree) or "").partition("\n\n")[0]
    if not first.endswith("."):
        yield f"{source.path}: open the file with a sentence that says what it is for"


def oversized(source: Source) -> Iterator[str]:
    """A file of the package holds one thing: one that grew has another in it, a tiny one belongs to its neighbour."""
    length = source.text.count("\n")
    if source.in_tests:
        return
    if length > LONGEST:
        yield f"{source.path}: {length} lines, more than {LONGEST}: find the thing that moves to a file of its own"


def overgrown(source: Source) -> Iterator[str]:
    """A function fits on a screen, and takes few parameters."""
    if source.in_tests:
        return
    for node in source.nodes:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        name, lines = f"{source.path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > LONGEST_FUNCTION:
            yield f"{name} has {lines} lines, more than {LONGEST_FUNCTION}: find the step that is a function"
        if name in PUBLIC_OPTIONS or any("click" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        number = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
        if number > MANY_PARAMETERS.get(name, MOST_PARAMETERS):
            yield f"{name} has {number} parameters, more than {MOST_PARAMETERS}: find the value that holds some of them"


def unimplemented(source: Source) -> Iterator[str]:
    """What exists, works."""
    for line, name in source.names():
        if name == "NotImplementedError" and not source.in_tests:
            yield f"{source.path}:{line}: NotImplementedError"


def printing(source: Source) -> Iterator[str]:
    """What is printed goes through the one file that takes the commands to a terminal out of it."""
    if source.in_tests or source.path == "taskqueue/cli/output.py":
        return
    for line, name in source.names():
        if name in {"click.echo", "click.secho", "print"}:
            yield f"{source.path}:{line}: {name}: use taskqueue.cli.output"


def pretending(source: Source) -> Iterator[str]:
    """Tests use the real thing."""
    if not source.in_tests:
        return
    for line, name in source.imports():
        if name.partition(".")[0] in MOCKS and name not in TEST_CASES:
            yield f"{source.path}:{line}: imports {name}"
    for line, name in source.names():
        if name in {"monkeypatch.setattr", "monkeypatch.setitem", "mocker"}:
            yield f"{source.path}:{line}: {name}"


def numbering(source: Source) -> Iterator[str]:
    """Parameters of SQL stand in order or have names: Python 3.12 warns of numbers, and 3.14 refuses them."""
    if not source.path.startswith(("taskqueue/store/sqlite/", "taskqueue/store/relational/")):
        return
    for number, line in enumerate(source.text.splitlines(), 1):
        if re.search(r"\?\d", line):
            yield f"{source.path}:{number}: give the parameter a name, as :at"


def skipping(source: Source) -> Iterator[str]:
    """A test runs, or the run has failed."""
    if not source.in_tests:
        return
    for line, name in (*source.imports(), *source.names()):
        first, _, rest = name.partition(".")
        if first == "pytest" and rest.rpartition(".")[2] in SKIPS:
            yield f"{source.path}:{line}: {name}"


RULES: tuple[Callable[[Source], Iterator[str]], ...] = (
    against_the_layers,
    across_processes,
    past_the_doors,
    past_the_engine,
    pickling,
    sleeping,
    writing,
    shapeless,
    retired,
    quoting_codes,
    unopened,
    oversized,
    overgrown,
    unimplemented,
    printing,
    pretending,
    numbering,
    skipping,
)


@cache
def sources() -> tuple[Source, ...]:
    """Return every Python file of package and tests."""
    paths = (path for folder in ("taskqueue", "tests") for path in sorted((CHECKOUT / folder).rglob("*.py")))
    return tuple(Source(str(path.relative_to(CHECKOUT)), path.read_text()) for path in paths)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Callable[[Source], Iterator[str]]) -> None:
    assert [breach for source in sources() for breach in rule(source)] == []


def code_lines(source: Source) -> set[int]:
    """Return the numbers of the lines that are neither blank nor a comment nor of a docstring."""
    lines: set[int] = set()
    left_out = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in left_out:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in source.nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def test_the_package_does_not_grow_unasked() -> None:
    package = [source for source in sources() if not source.in_tests]
    imported = {
        (source.path, line)
        for source in package
        for node in source.nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = sum(len(code_lines(source)) for source in package)

    assert len(package) <= MOST_FILES
    assert lines <= MOST_CODE_LINES
    assert len(imported) <= MOST_IMPORTS * lines


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the names along a circle of imports, the first one again at the end; nothing where there is none."""
    safe: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in safe:
            return []
        for other in sorted(imports.get(name, ())):
            if found := search(other, [*path, name]):
                return found
        safe.add(name)
        return []

    return next(filter(None, (search(name, []) for name in sorted(imports))), [])


def imports(sources: tuple[Source, ...]) -> dict[str, set[str]]:
    """Return what each file of the package imports of it, also inside functions, but for the type checker alone."""
    files = {source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source for source in sources}
    found: dict[str, set[str]] = {}
    for name, source in files.items():
        if not source.in_tests:
            modules = {each if each in files else each.rpartition(".")[0] for each in source.run_time_imports}
            found[name] = modules.intersection(files) - {name, "taskqueue"}
    return found


def test_nothing_else_lies_at_the_top() -> None:
    ignored = [pattern.rstrip("/") for pattern in (CHECKOUT / ".gitignore").read_text("utf-8").split()]
    names = {path.name for path in CHECKOUT.iterdir() if not path.name.startswith(".")}

    assert {name for name in names if not any(fnmatch(name, pattern) for pattern in ignored)} == TOP


def test_no_file_imports_one_that_imports_it() -> None:
    assert circle(imports(sources())) == []


def test_a_circle_of_imports_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if TYPE_CHECKING:\n    from taskqueue.store import a\nelse:\n    x = 1", []),
        ("if TYPE_CHECKING:\n    x: int\nelse:\n    from taskqueue.store import a", ["a", "b", "a"]),
        ("def late():\n    from taskqueue.store.a import x", ["a", "b", "a"]),
    ],
)
def test_a_circle_for_the_type_checker_alone_is_none(text: str, expected: list[str]) -> None:
    found = circle(
        imports(
            (
                Source("taskqueue/store/a.py", "from taskqueue.store import b"),
                Source("taskqueue/store/b.py", text),
            )
        )
    )

    assert [name.removeprefix("taskqueue.store.") for name in found] == expected


def _stem(path: Path) -> str:
    """Return the name of a module, or that of a package for its ``__init__``."""
    return path.parent.name if path.stem == "__init__" else path.stem


def _is_named_after(test: str, module: str) -> bool:
    """Return whether a test file has the name of the module, or that name between that of a store and more."""
    name = test.removeprefix("sqlite_").removeprefix("mongodb_")
    return module in (test, name) or name.startswith(f"{module}_")


@cache
def modules() -> dict[str, Path]:
    """Return the files of the layers that hold more than a docstring, by their path below the package."""
    found = {}
    for source in sources():
        path = CHECKOUT / source.path
        name = source.path.removeprefix("taskqueue/").removesuffix(".py")
        if not source.in_tests and "/" in name and len(source.tree.body) > 1 and path.stem != "__main__":
            found[name] = path
    return found


@cache
def files_of_tests() -> dict[str, Path]:
    """Return the test files of the layers by their path below ``tests``."""
    layers = {name.partition("/")[0] for name in modules()}
    return {
        str(path.relative_to(CHECKOUT / "tests")): path
        for layer in sorted(layers)
        for path in sorted((CHECKOUT / "tests" / layer).rglob("test_*.py"))
    }


def _own_tests(module: str, path: Path) -> list[str]:
    layer = module.partition("/")[0]
    return [
        name
        for name, test in files_of_tests().items()
        if name.startswith(f"{layer}/") and _is_named_after(test.stem.removeprefix("test_"), _stem(path))
    ]


def test_each_module_has_tests_of_its_name_or_is_named_with_those_that_cover_it() -> None:
    covered = {module for modules in COVERS.values() for module in modules.split()}
    without = [name for name, path in modules().items() if name not in covered and not _own_tests(name, path)]

    assert without == [], "name them in tests/covers.py with the test file that covers them"
    assert sorted(covered - {*modules()}) == [], "tests/covers.py names modules that are not there"
    assert sorted(name for name in COVERS if not (CHECKOUT / "tests" / name).is_file()) == []


def test_each_test_file_is_named_after_a_module_or_is_a_theme() -> None:
    named = {test for module, path in modules().items() for test in _own_tests(module, path)}

    assert sorted({*files_of_tests()} - named - {*COVERS}) == [], "name them after a module, or in tests/covers.py"


BREACHES = (
    (against_the_layers, "taskqueue/model/job.py", "from taskqueue.store import Store"),
    (against_the_layers, "taskqueue/model/job.py", "def late():\n    from ..store import sqlite"),
    (against_the_layers, "taskqueue/daemon/node/node.py", "import taskqueue.testing.plugin"),
    (against_the_layers, "taskqueue/cli/run.py", "from taskqueue.testing import Jobs"),
    (against_the_layers, "taskqueue/testing/jobs.py", "from taskqueue.cli import node"),
    (against_the_layers, "taskqueue/store/sqlite.py", "from taskqueue import Job"),
    (against_the_layers, "taskqueue/web/view.py", "from taskqueue.store import Store"),
    (against_the_layers, "taskqueue/extra.py", ""),
    (across_processes, "taskqueue/daemon/manager/manager.py", "from taskqueue.daemon.node import leftovers"),
    (across_processes, "taskqueue/daemon/node/start.py", "from taskqueue.daemon.manager import scaling"),
    (across_processes, "taskqueue/daemon/runtime/loop.py", "from taskqueue.daemon.worker.worker import Worker"),
    (across_processes, "taskqueue/daemon/settings.py", "from taskqueue.daemon.manager.scaling import PoolMode"),
    (past_the_doors, "taskqueue/daemon/node/node.py", "import psutil"),
    (past_the_doors, "taskqueue/store/sqlite.py", "from pymongo.errors import PyMongoError"),
    (past_the_doors, "taskqueue/store/sqlite.py", "import sqlalchemy"),
    (past_the_engine, "taskqueue/store/relational/claims.py", "from sqlite3 import Cursor"),
    (past_the_engine, "taskqueue/store/relational/store.py", "from taskqueue.store.sqlite import alike"),
    (past_the_engine, "taskqueue/store/relational/store.py", "def late():\n    from ..sqlite.url import location"),
    (pickling, "taskqueue/daemon/protocol/channel.py", "from pickle import loads"),
    (pickling, "tests/test_it.py", "from multiprocessing import Queue"),
    (sleeping, "taskqueue/daemon/node/node.py", "from time import sleep"),
    (sleeping, "taskqueue/daemon/node/node.py", "import time\ntime.sleep(1)"),
    (shapeless, "taskqueue/daemon/utils.py", ""),
    (shapeless, "tests/helpers/jobs.py", ""),
    (retired, "taskqueue/daemon/crew.py", ""),
    (retired, "taskqueue/store/__init__.py", "class Store:\n    def impose(self): ..."),
    (retired, "taskqueue/daemon/protocol/messages.py", "class LadderBegun: ..."),
    (retired, "taskqueue/cli/wait.py", "PATIENCE = 2.0"),
    (retired, "taskqueue/store/relational/claims.py", "def claim(wish: int): ..."),
    (quoting_codes, "taskqueue/model/record.py", '"""Ranks jobs (LZQ-8)."""'),
    (unopened, "taskqueue/daemon/node/node.py", "import os"),
    (unopened, "taskqueue/daemon/node/node.py", '"""The node"""'),
    (oversized, "taskqueue/store/relational/claims.py", "\n" * 801),
    (unimplemented, "taskqueue/store/base.py", "raise NotImplementedError"),
    (printing, "taskqueue/cli/list.py", "click.echo('no jobs')"),
    (pretending, "tests/test_it.py", "from unittest.mock import Mock"),
    (pretending, "tests/test_it.py", "monkeypatch.setattr(os, 'fork', None)"),
    (numbering, "taskqueue/store/relational/claims.py", "_ONE = 'SELECT id FROM jobs WHERE rowid = ?1'"),
    (skipping, "tests/test_it.py", "pytest.skip('no server')"),
    (skipping, "tests/test_it.py", "@pytest.mark.xfail\ndef test(): pass"),
    (skipping, "tests/test_it.py", "from pytest import importorskip"),
)


@pytest.mark.parametrize(("rule", "path", "text"), BREACHES)
def test_a_breach_is_seen(rule: Callable[[Source], Iterator[str]], path: str, text: str) -> None:
    [breach] = rule(Source(path, text))

    assert breach.startswith(path)


def test_what_is_allowed_is_not_a_breach() -> None:
    text = '"""Say what it is for."""\n'
    text += "import os, psutil\nfrom taskqueue.store import Store\nfrom . import loop\n"

    assert [
        breach for rule in RULES for breach in rule(Source("taskqueue/daemon/runtime/child_process.py", text))
    ] == []


def test_prose_has_no_more_words_that_read_translated_than_its_budget() -> None:
    assert not words.excess(), "write it as tests/words.py asks, or name the line there if the word is right"
