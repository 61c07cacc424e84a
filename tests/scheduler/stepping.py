"""Jobs with loops and steps that the tests of this folder run; they tell what they do in a list of the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from taskqueue import Fail, Interrupted, Job, Snooze, StepwiseJob
from taskqueue.model.record import Failure

done: list[Any] = []
"""What was done, in order."""


class Looping(Job):
    """Loops over ``data["items"]`` and fails, once in each run, before the items of ``data["fails"]`` are finished."""

    def start(self) -> str:
        for item in self.each(self.items()):
            if item in self.data["fails"] and (item, "failed") not in done:
                done.append((item, "failed"))
                raise ValueError(f"no item {item}")
            done.append(item)
        return "over"

    def items(self) -> Any:
        return self.data["items"]


class Skipping(Looping):
    """Loops over an iterator."""

    def items(self) -> Any:
        return iter(self.data["items"])


class Paging(Looping):
    """Loops over what is behind a cursor, which is the item itself in a list."""

    def items(self) -> Any:
        return self.behind

    def behind(self, cursor: Any) -> Iterator[tuple[Any, Any]]:
        done.append(("behind", cursor))
        for item in self.data["items"]:
            if cursor is None or item > cursor[0]:
                yield [item], item


class Nesting(Job):
    """Loops inside a loop, and loops once more; fails once at ``data``."""

    def start(self) -> None:
        for outer in self.each("ab", name="outer"):
            for inner in self.each(range(3), name="inner"):
                self.do(f"{outer}{inner}")
        for last in self.each("xy", name='"last"'):
            self.do(last)

    def do(self, what: str) -> None:
        if what == self.data and "failed" not in done:
            done.append("failed")
            raise ValueError(what)
        done.append(what)


class Leaving(Job):
    """Leaves its loop at the second item, then snoozes once."""

    def start(self) -> None:
        for item in self.each("abc"):
            done.append(item)
            if item == "b":
                break
        if len(done) < 4:
            raise Snooze(0)


class Batching(Looping):
    """Writes its items in batches of two, as a transaction does: a batch that fails leaves nothing."""

    def start(self) -> str:
        for batch in self.each(self.items(), batch=2):
            for item in batch:
                if item in self.data["fails"] and (item, "failed") not in done:
                    done.append((item, "failed"))
                    raise ValueError(f"no item {item}")
            done.append(batch)
        return "over"


class BatchingPages(Batching):
    """Does so with what is behind a cursor."""

    def items(self) -> Any:
        return self.behind

    def behind(self, cursor: Any) -> Iterator[tuple[Any, Any]]:
        done.append(("behind", cursor))
        for item in self.data["items"]:
            if cursor is None or item > cursor:
                yield item, item


class Keeping(Looping):
    """Says itself what is kept: what it has written so far, after each item of ``data["kept"]`` and at the end."""

    def start(self) -> str:
        written = []
        loop = self.each(self.items(), manual=True, turn=self.data.get("turn"))
        for item in loop:
            if item in self.data["fails"] and (item, "failed") not in done:
                done.append((item, "failed"))
                raise ValueError(f"no item {item}")
            written.append(item)
            if item in self.data["kept"]:
                done.append(written)
                written = []
                loop.keep()
        done.append(written)
        loop.keep()
        loop.keep()
        return "over"


class Keyed(Job):
    """Tells its keys in and beside its loops, and fails wherever it is for the first time."""

    def start(self) -> None:
        self.tell("before")
        for outer in self.each("ab", name="outer"):
            for inner in self.each(self.behind, name="inner: any"):
                self.tell(outer, inner)
        for batch in self.each(range(3), batch=2):
            self.tell(batch)
        loop = self.each("xy", name="last", manual=True)
        for item in loop:
            self.tell(item)
            loop.keep()
        self.tell("behind")

    def behind(self, cursor: Any) -> list[tuple[Any, Any]]:
        items = (7, "seven")
        return [(item, item) for item in items[0 if cursor is None else items.index(cursor) + 1 :]]

    def tell(self, *where: Any) -> None:
        tell_keys(self, *where)


def tell_keys(job: Job, *where: Any) -> None:
    """Tell the keys of the job, and raise where that was not done before."""
    is_first = where not in [told[0] for told in done]
    done.append((where, job.key, job.run_key))
    if is_first:
        raise ValueError(where)


class KeyedSteps(StepwiseJob):
    """Tells its keys in each step, and fails wherever it is for the first time."""

    def initialize(self) -> None:
        self.tell("initialize")

    def iterate(self) -> bool:
        for item in self.each("ab"):
            self.tell(self.steps, item)
        return self.steps < 1

    def complete(self) -> None:
        self.tell("complete")

    def tell(self, *where: Any) -> None:
        tell_keys(self, *where)


class Turning(Job):
    """Gives its worker away after each item, since every item takes longer than a turn."""

    def start(self) -> None:
        for item in self.each(range(self.data["items"]), turn=1e-9):
            done.append((self.data["name"], item))  # noqa: PERF401 - each item is done when it comes


class Misusing(Job):
    """Does with ``each`` what cannot be done, and returns what that says."""

    def start(self) -> list[str]:
        said = []
        for turn in (0, -1, True, "1"):
            try:
                self.each([], name=f"turn {turn}", turn=turn)  # type: ignore[arg-type]
            except ValueError as error:
                said.append(str(error))
        self.each([], name="twice")
        try:
            self.each([], name="twice")
        except ValueError as error:
            said.append(str(error))
        try:
            for _ in zip(self.each("ab", name="one"), self.each("cd", name="other"), strict=True):
                pass
        except RuntimeError as error:
            said.append(str(error))
        return said


class Unkeepable(Job):
    """Has a cursor that cannot be kept."""

    def start(self) -> None:
        for _ in self.each(lambda _: [(object(), 1)]):
            pass


class Selfish(Job):
    """Raises what only others may raise in it."""

    def start(self) -> None:
        raise Interrupted("cancel")


class Counting(StepwiseJob):
    """Counts to ``data["to"]``; ``data["fails"]`` names the step that fails, as often as ``data["times"]`` says."""

    def initialize(self) -> None:
        done.append("initialize")
        self.state["count"] = 0
        self.fail("initialize")

    def iterate(self) -> bool:
        self.state["count"] += 1
        self.reports["counted"] = self.state["count"]
        done.append((self.data.get("name"), self.state["count"]) if "name" in self.data else self.state["count"])
        self.fail(self.state["count"])
        assert self.steps == self.state["count"] - 1
        return bool(self.state["count"] < self.data["to"])

    def complete(self) -> Any:
        done.append("complete")
        self.fail("complete")
        self.reports["completed"] = True
        return self.state["count"]

    def clean_up(self, failure: Failure | None) -> None:
        done.append(("clean up", self.state, failure.message if failure else ""))
        self.fail("clean up")
        self.reports["cleaned"] = True

    def fail(self, step: Any) -> None:
        wanted = self.data.get("fails")
        if step == wanted and done.count("failed") < self.data.get("times", 1):
            done.append("failed")
            raise Fail(f"no {step}") if self.data.get("for_good") else ValueError(f"no {step}")


class Hooked(Counting):
    """Counts, and tells which hooks are called."""

    def on_success(self) -> None:
        done.append("on_success")

    def on_failure(self, error: Exception) -> None:
        done.append(f"on_failure {error}")

    def on_last_failure(self, error: Exception) -> None:
        done.append("on_last_failure")

    def finalize(self) -> None:
        done.append("finalize")


class Bare(StepwiseJob):
    """Defines only what it must, and says wrongly whether there is more if its data is that."""

    def iterate(self) -> bool:
        if self.data == "none":
            return None  # type: ignore[return-value]
        if self.data == "unkeepable":
            self.state["thing"] = object()
        return False


class Shapeless(StepwiseJob):
    """Does not say what it does."""


class Paced(StepwiseJob):
    """Loops inside of each step, from the beginning each time, and snoozes once inside of one."""

    def iterate(self) -> bool:
        for item in self.each("ab"):
            done.append(item)
            if len(done) == 3:
                raise Snooze(0)
        return self.steps < 1
