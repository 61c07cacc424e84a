"""The run context: the values of one run, and the methods that its job calls; subclasses decide where the values go."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from taskqueue.errors import CheckpointRefused, InvalidJob
from taskqueue.execution.resumable_loops import Loops
from taskqueue.execution.run import Run, failure_of
from taskqueue.model.conditions import condition as condition_of
from taskqueue.model.ids import JobId
from taskqueue.model.job import number_of
from taskqueue.model.lifecycle.continuation import continuation_of
from taskqueue.model.log_fields import OF_NO_RUN, RunFields
from taskqueue.model.run_context import Items, Loop
from taskqueue.model.serializer import clean, encode
from taskqueue.model.shown_text import as_code

MESSAGE_LIMIT = 500
"""Maximum number of characters of a progress message that are kept, so that it fits in a page of shared memory."""


if TYPE_CHECKING:
    from taskqueue.model.codecs import Form

    LoggerAdapter = logging.LoggerAdapter[logging.Logger]
else:  # before Python 3.11 this class takes no parameters
    LoggerAdapter = logging.LoggerAdapter


class JobLog(LoggerAdapter):
    """The logger of one run: every record has the run's fields, even if the application configures logging."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the line as it is, with the fields of the run among its ``extra``."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Interrupts(Protocol):
    """The requests that may end a run; as a context manager, it marks the code that may be interrupted: the user's."""

    @property
    def stop_reason(self) -> str | None:
        """``shutdown``, ``cancel``, ``timeout`` or ``lost`` once this run is being ended, else None."""

    @property
    def stopping(self) -> bool:
        """Whether the job may raise ``Interrupted`` itself: it was asked to end, or its node is stopping."""

    def __enter__(self) -> None:
        """Raise ``Interrupted`` from now on."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Stop raising ``Interrupted``."""

    def deliver_to(self, cancel: Callable[[str], bool]) -> None:
        """Until this context ends, call ``cancel`` with the reason, and raise only if it returns False."""


class JobContext(ABC):
    """The context of one run (``model.run_context.RunContext``); a subclass reports its start and its progress."""

    state_form: Form | None = None
    """The declared type of checkpoints."""
    ending: Exception | None = None
    around_run: Callable[..., Any] | None = None
    run_ended: Callable[..., Any] | None = None
    sentry: Any = None
    """The ``SentryScope`` of the run, if it is in a process whose application has set Sentry up."""
    awaits: Callable[[Coroutine[Any, Any, Any], Interrupts], Coroutine[Any, Any, Any]] | None = None
    """Awaits the coroutines of the run in the caller's loop; None if each runs in a loop of its own."""

    def __init__(self, run: Run, interrupts: Interrupts) -> None:
        self.run = run
        self.attempt = run.attempt
        self.data = run.data
        """Extended JSON; includes the results of other jobs that the job receives."""
        self.is_last_attempt = run.is_last
        self.previous_error = None if run.error is None else failure_of(run.error)
        self.course = None if run.continuation is None else continuation_of(run.continuation)
        self.condition = None if run.condition is None else condition_of(run.condition)
        self.meta: Mapping[str, str] = run.meta or {}
        self._interrupts = interrupts
        self.fields = RunFields(
            job_id=run.id,
            job=run.job,
            queue=run.queue,
            attempt=run.attempt,
            node=OF_NO_RUN.node,
            meta=self.meta,
            keep=self._keep_line,
            context=ref(self),
        )
        """The fields of log lines of this run."""

    @property
    @abstractmethod
    def scheduler(self) -> Any:
        """Return a ``Scheduler`` on the store of the job."""

    @abstractmethod
    def report_check(self) -> None:
        """Report that the job's condition is being checked; the run itself may start after that."""

    @abstractmethod
    def report_start(self) -> bool:
        """Report that the run itself is starting; return False if it must not."""

    @cached_property
    def id(self) -> JobId:
        """Return the id of the job."""
        return JobId(self.run.id)

    @property
    def run_key(self) -> str:
        """Return the name of the run."""
        return f"{self.run.id}:{self.run.claims}"

    @property
    def state(self) -> str | None:
        """Return the last checkpoint before this run."""
        return self.run.state

    @cached_property
    def _loops(self) -> Loops:
        return Loops(self.run.position, self._keep_position, lambda: self._interrupts.stopping)

    @property
    def stopping(self) -> bool:
        """Return whether this run has been asked to end."""
        return self._interrupts.stopping

    @property
    def key(self) -> str:
        """Return the key of the job, with the step and the current items of its loops."""
        course = self.course
        step = f"-{course.phase.value}{course.steps}" if course is not None and course.phase is not None else ""
        return f"{self.run.key or self.run.id}{step}{self._loops.key}"

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Return a logger whose lines have the fields of the run."""
        return JobLog(logging.getLogger(self.run.job.partition(":")[0]), dict(self.fields.items()))

    def each(self, items: Items[Any], name: str, turn: float | None, batch: int | None, manual: bool) -> Loop[Any]:
        """Return the items of a loop, starting at its position."""
        return self._loops.each(items, name, turn, batch, manual)

    def complete(self, result: Any) -> Any:
        """Return the result of the job's code; a coroutine is run to completion in an event loop."""
        return self._run_coroutine(result) if type(result) is CoroutineType else result

    async def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of the coroutine; a context in its caller's loop awaits it, others do not suspend."""
        if self.awaits is not None:
            return await self.awaits(coroutine, self._interrupts)
        return self._run_coroutine(coroutine)

    def uninterrupted(self) -> AbstractContextManager[object]:
        """Return a context in which no ``Interrupted`` is raised; without a worker nothing raises one."""
        return nullcontext()

    def set_hooks(self, around_run: Callable[..., Any] | None, run_ended: Callable[..., Any] | None) -> None:
        """Run it within the hooks for all jobs; its threads get the context variables that the hooks set."""
        self.around_run, self.run_ended = around_run, run_ended
        self.fields.is_hooked = True

    @abstractmethod
    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of the coroutine; asyncio is imported here and not earlier."""

    def progress(self, percent: float, message: str = "") -> None:
        """Keep the progress; raise ``ValueError`` if it is outside 0…100."""
        number = number_of(percent)
        if not 0 <= number <= 100:
            raise ValueError(f"progress({as_code(percent)}): pass a number from 0 to 100")
        self._keep_progress(round(number, 2), shortened(str(message)))

    def checkpoint(self, state: Any) -> None:
        """Keep the state, which survives the process once this returns. Raises ``CheckpointRefused``."""
        try:
            stated = state if self.state_form is None else self.state_form.encode(state, "checkpoint")
            text = encode(stated, "checkpoint")
        except InvalidJob as refused:
            raise CheckpointRefused(str(refused)) from None
        self._keep_state(text)

    @abstractmethod
    def _keep_progress(self, percent: float, message: str) -> None:
        """Keep the progress."""

    @abstractmethod
    def _keep_state(self, text: str) -> None:
        """Keep a checkpoint, which is stored before this returns."""

    @abstractmethod
    def _keep_position(self, text: str) -> None:
        """Keep the positions of the loops."""

    @abstractmethod
    def _keep_line(self, at: float, level: str, logger: str, text: str) -> None:
        """Keep a log line with the job; ``at`` is a time of the host's clock."""


def shortened(message: str) -> str:
    """Return the message in a form that can be kept."""
    return clean(message)[:MESSAGE_LIMIT]
