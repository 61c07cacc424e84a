"""The public job class and decorator, the job that runs, and the exceptions by which a job says how it ended."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, cast, overload

from bson import ObjectId

from taskqueue.errors import NoCurrentJob
from taskqueue.model import other_systems
from taskqueue.model.log_fields import CURRENT
from taskqueue.model.record import Failure
from taskqueue.model.run_context import Item, Items, Loop, RunContext
from taskqueue.model.schedules.origin import follows_endlessly
from taskqueue.model.serializer import decode
from taskqueue.model.shown_text import as_code

if TYPE_CHECKING:  # options are checked by the types of the table, and read nothing from a job
    from datetime import datetime

    from typing_extensions import TypeVar

    from taskqueue.model.options.table import ClassOptions

    Data = TypeVar("Data", default=Any)
    Result = TypeVar("Result", default=Any)
else:  # typing_extensions takes long to import
    from typing import TypeVar

    Data = TypeVar("Data")
    Result = TypeVar("Result")

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned", covariant=True)  # noqa: PLC0105 - messages show the name


CHILDREN_AT_ONCE = 500
"""The most children that a job waits for at once; when these have ended it checks the others."""


class Interrupted(BaseException):
    """Raised in a running job that must end; catch it to checkpoint or clean up, then raise it again.

    ``reason`` is ``shutdown``, ``cancel``, ``timeout`` or ``lost``. Not an ``Exception``, because user code catches
    those.
    """

    __module__ = "taskqueue"  # as it is imported; tracebacks name it so

    def __init__(self, reason: str = "shutdown") -> None:
        super().__init__(reason)
        self.reason = reason


class JobTimeout(Interrupted):
    """Raised in a running job that has exceeded its ``timeout``."""

    __module__ = "taskqueue"  # as it is imported; tracebacks name it so

    def __init__(self, reason: str = "timeout") -> None:
        super().__init__(reason)


class Retry(Exception):
    """Raise it to fail this attempt and run again after ``delay`` seconds, if the retry policy has an attempt left."""

    __module__ = "taskqueue"  # as it is imported; tracebacks name it so

    @other_systems.explained
    def __init__(self, delay: float | None = None, reason: str = "") -> None:
        super().__init__(reason or "asked to be retried")
        self.delay = None if delay is None else seconds_of("Retry", delay)


class Fail(Exception):
    """Raise it to fail the job for good, without further attempts."""

    __module__ = "taskqueue"  # as it is imported; tracebacks name it so

    @other_systems.explained
    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "gave up")


class Snooze(Exception):
    """Raise it to run again after ``seconds``; the run does not count as an attempt."""

    __module__ = "taskqueue"  # as it is imported; tracebacks name it so

    @other_systems.explained
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds_of("Snooze", seconds)
        super().__init__(f"again in {self.seconds:g} s")


class AwaitChildren(Exception):
    """Raised by ``wait_children`` while a child is open: the run ends here; the job runs again when all have ended."""

    def __init__(self, ids: Sequence[ObjectId]) -> None:
        super().__init__(f"{len(ids)} children are open")
        self.ids = tuple(ids)


class RunFacilities:
    """The values and methods of one run, which a ``Job`` has on ``self``, and a task by ``current_job()``."""

    _context: RunContext | None = None

    @property
    def id(self) -> ObjectId:
        """The job's id, the same for all its attempts."""
        return self._running.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._running.attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this attempt ends the job."""
        return self._running.is_last_attempt

    @property
    def previous_error(self) -> Failure | None:
        """The error of the previous attempt as ``type``, ``message`` and ``bases``, without traceback, or None."""
        return self._running.previous_error

    def end_with(self, ending: Retry | Fail | Snooze) -> None:
        """Continue, and end this attempt as if ``ending`` had been raised when ``start()`` returns.

        The last call counts, and an exception that is raised later wins. Raises ``TypeError`` for anything else.
        """
        if not isinstance(ending, Retry | Fail | Snooze):
            raise TypeError(f"end_with({as_code(ending)}): pass Retry(), Fail('why') or Snooze(60)")
        self._running.ending = ending

    @property
    def key(self) -> str:
        """The idempotency key for effects outside, the same in all runs of the job: the id.

        A copy (``recover_job``) with the data of a job that ended without success has the key of that job.
        In a loop of ``each`` it names the item or batch as well, in a ``StepwiseJob`` the step. It has letters, digits,
        ``.``, ``_`` and ``-`` only, as headers and file names want it. For several effects add a word to it.
        """
        return self._running.key

    @property
    def run_key(self) -> str:
        """The name of this run, ``id:claims``, different each time: for logs and files that one run writes."""
        return self._running.run_key

    @property
    def meta(self) -> Mapping[str, str]:
        """The small mapping of text that travels with the job; jobs that this one adds inherit it."""
        return self._running.meta

    @property
    def stopping(self) -> bool:
        """Whether this run has been asked to end, so that it can do so in good time."""
        return self._running.stopping

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines have the fields of the run: id, class, queue, attempt and node."""
        return self._running.log

    @property
    def scheduler(self) -> Any:
        """A ``Scheduler`` on the store that this job came from, opened when first used."""
        return self._running.scheduler

    @property
    def dependencies(self) -> dict[ObjectId, Any]:
        """The result of each job in ``depends_on``, None for one without success; read from the store now."""
        results: dict[ObjectId, Any] = self.scheduler.get_job(self.id).dependencies
        return results

    @property
    def scheduled_time(self) -> datetime | None:
        """The time for which a schedule started the job, however late it runs, and for a copy too; read from the store.

        None without a schedule.
        """
        time: datetime | None = self.scheduler.get_job(self.id).scheduled_time
        return time

    def wait_children(self, on_failure: Literal["fail", "ignore"] = "fail") -> list[Any]:
        """Return the handles of this job's children, the jobs added with ``parent=self``, once all have ended.

        While a child is open the run ends here: the job is POSTPONED without holding a worker, and ``start()`` runs
        again, with its ``self.state``, when all children have ended; this does not count as an attempt. If a child
        ended without success, the job fails for good, unless ``on_failure="ignore"``. The job does not wait for
        children that depend on it; for a child that recurs without ``max_runs`` or ``until`` it waits only for the
        first occurrence.
        """
        if on_failure not in ("fail", "ignore"):
            raise ValueError(f"wait_children(on_failure={as_code(on_failure)}): pass 'fail' or 'ignore'")
        own_children = [
            child for child in self.scheduler.get_jobs({"parent": self.id}) if self.id not in child.depends_on
        ]
        children = [child for child in own_children if not follows_endlessly(child.snapshot.origin)]
        open_ids = [child.id for child in children if child.is_pending]
        if open_ids:
            raise AwaitChildren(open_ids[:CHILDREN_AT_ONCE])
        unsuccessful = next((child for child in children if not child.is_done), None)
        if unsuccessful is not None and on_failure == "fail":
            raise Fail(f"child {unsuccessful.id} ended as {unsuccessful.status.name}")
        return children

    @overload
    def each(
        self, items: Items[Item], name: str = "", turn: float | None = None, *, batch: None = None, manual: bool = False
    ) -> Loop[Item]: ...

    @overload
    def each(
        self, items: Items[Item], name: str = "", turn: float | None = None, *, batch: int, manual: bool = False
    ) -> Loop[list[Item]]: ...

    def each(
        self,
        items: Items[Any],
        name: str = "",
        turn: float | None = None,
        *,
        batch: int | None = None,
        manual: bool = False,
    ) -> Loop[Any]:
        """Return the items for a loop that continues after the last finished item when it was interrupted.

        ``items`` is a sequence, another iterable that yields the same items each time (those before are skipped), or a
        function of a cursor: it is called with the cursor of the last finished item, None at first, and returns pairs
        of a cursor, a value like job data, and an item. Either may be asynchronous, for ``async for``. An item is
        finished when the next one is asked for: by then its effects must be durable, for example committed. With
        ``batch=1000`` the loop hands out lists of 1000 items, each of which is finished as a whole. With
        ``manual=True`` items are finished when the job calls ``keep()`` of the loop: all items handed out so far. A
        node that stops waits for the current item or batch, or for ``keep()``. After ``turn`` seconds the worker is
        given to other jobs, and the loop continues after they had their turn. Every loop of a job except one needs a
        ``name``, including inner loops.
        """
        return self._running.each(items, name, turn, batch, manual)

    def progress(self, percent: float, message: str = "") -> None:
        """Report progress in percent, 0 to 100; stored at most every 500 ms, the last value always.

        Half is 50, not 0.5, which is half of a percent. Raises ``ValueError`` outside 0…100.
        """
        self._running.progress(percent, message)

    def checkpoint(self, state: Any) -> None:
        """Keep ``state`` for a later attempt: it survives this worker at once, and this host within a second.

        Raises ``CheckpointRefused`` for a value that cannot be stored.
        """
        self._running.checkpoint(state)

    @property
    def _running(self) -> RunContext:
        if self._context is None:
            raise RuntimeError(f"{type(self).__qualname__} is not running: use this only inside start()")
        return self._context


class RunningJob(RunFacilities):
    """The job of a run, as ``current_job()``, tasks with ``context=True`` and run hooks have it.

    It has what a ``Job`` has on ``self``; ``data`` and ``state`` are copies each time, as they are stored.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context

    @property
    def job(self) -> str:
        """The import path of its class or function."""
        return self._running.fields.job

    @property
    def data(self) -> Any:
        """The data as they are stored, a copy each time."""
        return decode(self._running.data)

    @property
    def state(self) -> Any:
        """The state of the last ``checkpoint`` before this run, as it is stored, a copy each time; None without."""
        text = self._running.state
        return None if text is None else decode(text)

    @property
    def queue(self) -> str:
        """The queue."""
        return self._running.fields.queue

    def __repr__(self) -> str:
        return f"<RunningJob {self.job} {self.id}, attempt {self.attempt}>"


def current_job() -> RunningJob:
    """Return the job whose run calls this: a task, a method of a job, a hook, or any code that these call.

    Tasks of asyncio, and threads that a job starts in a worker, belong to its run; elsewhere a thread does if it was
    started with ``contextvars.copy_context().run``. Raises ``NoCurrentJob`` outside of a run, and after its end.
    """
    fields = CURRENT.get()
    if fields is None or fields.context is None:
        raise NoCurrentJob(
            "no job is running here: call current_job() in a task, in a job, or in code that one of them calls; catch "
            "NoCurrentJob in code that is also called elsewhere"
        )
    context = fields.context()
    if context is None:
        raise NoCurrentJob(f"job {fields.job_id} has ended, but this code is still running: end it before the job ends")
    return RunningJob(context)


class Job(RunFacilities, Generic[Data, Result]):
    """Subclass it and define ``start``: its return value is the result, an exception is a failed attempt.

    Options of ``add_job`` may be declared on the class: ``options = {"retry": 5, "queue": "mail"}``; the call wins.
    A subclass inherits the options that it does not declare. A wrong one raises ``InvalidOption`` where
    the class is defined.
    ``Job[Invoice, Receipt]`` declares the types of data and result, and so do ``start(self, data: Invoice)`` and its
    return annotation: values of these types are checked when added, and restored.
    """

    options: ClassVar[ClassOptions] = {}
    _own_options: ClassVar[Any] = {}
    """The options as the class itself declares them."""

    data: Data = cast(Any, None)
    """The data passed to ``add_job``."""
    state: Any = None
    """The state of the last ``checkpoint`` of this job, in any attempt; None if there is none."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:
            """Return ``Job[Data, Result]``; ``Job[Data]`` has any result."""
            given = types if isinstance(types, tuple) else (types,)
            missing = len(getattr(cls, "__parameters__", ())) - len(given)
            return super().__class_getitem__((*given, *[Any] * missing))

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Add the options of its bases to those of the class, and raise ``InvalidOption`` for wrong ones."""
        super().__init_subclass__(**arguments)
        cls._own_options = cls.__dict__.get("options", {})
        levels = [vars(base).get("_own_options", vars(base).get("options", {})) for base in reversed(cls.__mro__)]
        if all(isinstance(level, Mapping) for level in levels):
            merged = _merged(levels)
            if merged != cls.options:
                cls.options = merged
        if cls.options != {}:
            from taskqueue.model.options import check_declared  # which a class without options needs not

            check_declared(cls, None if cls.start is Job.start else cls.start)

    def start(self, *args: Any, **kwargs: Any) -> Result | Awaitable[Result]:  # noqa: ARG002 - of every subclass
        """Do the work; define it without arguments, or with one for the data. Like all methods it may be ``async``."""
        raise TypeError(f"{type(self).__module__}.{type(self).__qualname__} has no start(): define it to do the work")

    def is_ready(self) -> Any:
        """Return whether the job can run now; asked before each run, again after growing pauses while it is False.

        Override it in a class whose jobs wait for something outside. See also the option ``ready``.
        """
        return True

    def on_success(self) -> Any:
        """Run after the job is DONE, in the same worker, at most once."""

    def on_failure(self, error: Exception) -> Any:
        """Run after a failed attempt, in the same worker, at most once."""

    def on_last_failure(self, error: Exception) -> Any:
        """Run after the failed attempt that was the last one, in the same worker, at most once."""

    def finalize(self) -> Any:
        """Run after the job has reached a final status, in the same worker, at most once."""


class TaskFunction(Generic[Arguments, Returned]):
    """A function that is also a job; calling it still calls the function."""

    takes_context = False
    """The function gets the running job as its first argument; the signature of the task is without that one."""

    def __init__(self, function: Callable[Arguments, Returned], options: ClassOptions) -> None:
        self.function = function
        self.options = options
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    if TYPE_CHECKING:

        @overload
        def result_of_job(self: TaskFunction[Arguments, Coroutine[Any, Any, Result]]) -> Result: ...

        @overload
        def result_of_job(self) -> Returned: ...

        def result_of_job(self) -> Any: ...

    def __repr__(self) -> str:
        return f"<task {self.__module__}:{self.__qualname__}>"


def _merged(levels: Sequence[Mapping[str, Any]]) -> Any:
    """Return the options of classes, the base first; a policy with its own pauses ignores the pauses of a base."""
    merged: dict[str, Any] = {}
    for level in levels:
        if not isinstance(level.get("retry", 0), int):
            merged.pop("retry_interval", None)
        merged.update(level)
    return merged


def seconds_of(name: str, value: float) -> float:
    """Return the seconds as a plain number; raise ``ValueError`` naming ``name`` unless it is one up to ten years."""
    seconds = number_of(value)
    if not 0 <= seconds <= 10 * 366 * 86_400:
        raise ValueError(f"{name}({as_code(value)}): pass seconds between 0 and ten years")
    return seconds


def number_of(value: object) -> float:
    """Return the value as a plain number, even if it is of a subclass of ``float``; NaN if it is not one."""
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else nan
    except OverflowError:
        return nan
