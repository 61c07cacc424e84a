"""Jobs that run in steps: each is a claim of its own, so that other jobs run in between."""

from __future__ import annotations

from typing import Any, cast

from taskqueue.model.job import Data, Job, Result
from taskqueue.model.lifecycle.continuation import Phase
from taskqueue.model.record import Failure
from taskqueue.model.serializer import decode


class StepOver(Exception):
    """Raised when a step has ended: the run ends here, and ``phase`` is next."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(f"{phase.value} comes next")
        self.phase = phase


class StepwiseJob(Job[Data, Result]):
    """Subclass it and define ``iterate``: it is called until it returns False, each time as a separate run.

    Between two steps the job waits for all others of its priority. ``self.state``, a dictionary here, and
    ``self.reports`` are stored together with the end of a step: a step that failed, was interrupted or killed starts
    again with their values from before it, or with its last ``checkpoint``. ``retry``, ``timeout``, ``crash_retries``
    and ``on_crash`` are for one step. When the job would end badly ``clean_up`` runs first.
    """

    state: Any = None
    """The state kept from step to step: a dictionary to be changed at will."""
    reports: Any = None
    """The reports for people (``process.reports``, ``taskqueue show``): a dictionary to be changed at will."""

    def initialize(self) -> Any:
        """Prepare the job, before the first iteration; a step of its own."""

    def iterate(self) -> Any:
        """Do the next piece of work and return whether there is more."""
        raise TypeError(f"{_name(self)} has no iterate(): define it to do the work")

    def complete(self) -> Result:
        """Finish the job after the last iteration, in a step of its own, and return its result."""
        return cast(Result, None)

    def clean_up(self, failure: Failure | None) -> Any:
        """Undo the work of the job, before it ends as FAILED, CANCELED or TIMEOUT; tried up to five times, with pauses.

        It has 60 seconds, or the ``timeout`` of the job, and must cope with work that was not started, or half done.
        """

    @property
    def phase(self) -> Phase | None:
        """The phase of this step: ``starting``, ``running``, ``ending`` or ``failing``."""
        course = self._running.course
        return None if course is None else course.phase

    @property
    def steps(self) -> int:
        """How many iterations have ended."""
        course = self._running.course
        return 0 if course is None else course.steps

    def start(self, *_args: Any, **_kwargs: Any) -> Any:
        """Do the step that is next: not to be defined in a subclass."""
        course = self._running.course
        self.state = {} if self.state is None else self.state
        self.reports = {} if course is None else decode(course.reports)
        match self.phase:
            case None:  # from now on the record says that the job cleans up
                raise StepOver(Phase.STARTING)
            case Phase.STARTING:
                self._running.complete(self.initialize())
                raise StepOver(Phase.RUNNING)
            case Phase.RUNNING:
                raise StepOver(Phase.RUNNING if self._iterated() else Phase.ENDING)
            case Phase.ENDING:
                return self._running.complete(self.complete())
        self._running.complete(self.clean_up(self.previous_error))
        return None

    def _iterated(self) -> bool:
        more: object = self._running.complete(self.iterate())
        if not isinstance(more, bool):
            raise TypeError(f"{_name(self)}.iterate() returned {more!r}: return True while there is more, else False")
        return more


def _name(job: Job) -> str:
    return f"{type(job).__module__}.{type(job).__qualname__}"
