"""Loops that go on behind the last finished item, whatever ended the run before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from taskqueue import Interrupted, Job, Process, Scheduler, Snooze, Status
from taskqueue.execution.resumable_loops import Loops
from taskqueue.model.lifecycle.outcomes import HandedBack
from taskqueue.store import Store
from tests.scheduler import stepping
from tests.scheduler.playing import begin, end, take
from tests.scheduler.stepping import (
    Batching,
    BatchingPages,
    Keeping,
    Keyed,
    KeyedSteps,
    Leaving,
    Looping,
    Misusing,
    Nesting,
    Paging,
    Selfish,
    Skipping,
    Turning,
    Unkeepable,
)


@pytest.fixture(autouse=True)
def done() -> Iterator[list[Any]]:
    """Return the list of what was done, empty."""
    stepping.done.clear()
    yield stepping.done
    stepping.done.clear()


def run(scheduler: Scheduler, job: type[Job], data: Any = None, **options: Any) -> Process:
    """Run one job to its end."""
    process = scheduler.add_job(job, data, **options)
    scheduler.run_pending(ignore_time=True)
    return process.refresh()


@pytest.mark.parametrize("job", [Looping, Skipping])
def test_a_loop_goes_on_at_the_item_that_was_not_finished(
    scheduler: Scheduler, done: list[Any], job: type[Looping]
) -> None:
    process = run(scheduler, job, {"items": list("abcde"), "fails": ["a", "c", "e"]}, retry=3)

    assert process.result == "over"
    assert done == [("a", "failed"), "a", "b", ("c", "failed"), "c", "d", ("e", "failed"), "e"]


def test_a_loop_over_pages_is_given_the_cursor_of_the_last_finished_item(scheduler: Scheduler, done: list[Any]) -> None:
    run(scheduler, Paging, {"items": [3, 5, 7], "fails": [3, 7]}, retry=2)

    again = [("behind", None), (3, "failed"), ("behind", None), 3, 5, (7, "failed"), ("behind", [5]), 7]
    assert done == again


def test_an_inner_loop_begins_anew_with_each_item_of_the_outer_one(scheduler: Scheduler, done: list[Any]) -> None:
    process = run(scheduler, Nesting, "b1", retry=1)

    assert process.is_done, process.why()
    assert done == ["a0", "a1", "a2", "b0", "failed", "b1", "b2", "x", "y"]


def test_loops_one_after_the_other_go_on_where_they_were(scheduler: Scheduler, done: list[Any]) -> None:
    run(scheduler, Nesting, "y", retry=1)

    assert done == ["a0", "a1", "a2", "b0", "b1", "b2", "x", "failed", "y"]


def test_the_item_at_which_a_loop_was_left_is_not_finished(scheduler: Scheduler, done: list[Any]) -> None:
    process = run(scheduler, Leaving)

    assert process.attempt == 1
    assert done == ["a", "b", "b", "b"]


def test_a_batch_is_finished_as_a_whole(scheduler: Scheduler, done: list[Any]) -> None:
    process = run(scheduler, Batching, {"items": list("abcde"), "fails": ["d", "e"]}, retry=2)

    assert process.result == "over"
    assert done == [["a", "b"], ("d", "failed"), ["c", "d"], ("e", "failed"), ["e"]]


def test_a_batch_behind_a_cursor_begins_behind_the_last_one(scheduler: Scheduler, done: list[Any]) -> None:
    run(scheduler, BatchingPages, {"items": [3, 5, 7, 9], "fails": [9]}, retry=1)

    assert done == [("behind", None), [3, 5], (9, "failed"), ("behind", 5), [7, 9]]


def test_a_manual_loop_goes_on_behind_what_was_kept(scheduler: Scheduler, done: list[Any]) -> None:
    process = run(scheduler, Keeping, {"items": list("abcdef"), "kept": ["b", "d"], "fails": ["d", "f"]}, retry=2)

    assert process.result == "over"
    assert done == [["a", "b"], ("d", "failed"), ["c", "d"], ("f", "failed"), ["e", "f"]]


def test_a_manual_loop_gives_its_turn_away_where_it_has_kept_all(scheduler: Scheduler, done: list[Any]) -> None:
    process = run(scheduler, Keeping, {"items": list("abcde"), "kept": ["b", "d"], "fails": [], "turn": 1e-9})

    assert process.result == "over"
    assert done == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(("job", "places"), [(Keyed, 10), (KeyedSteps, 6)])
def test_the_key_is_the_same_in_all_runs_and_another_one_for_each_item(
    scheduler: Scheduler, done: list[Any], job: type[Job], places: int
) -> None:
    process = run(scheduler, job, retry=places)
    assert process.is_done, process.why()

    keys: dict[Any, set[str]] = {}
    for where, key, run_key in done:
        keys.setdefault(str(where), set()).add(key)
        assert run_key.startswith(f"{process.id}:")
    assert len(keys) == places
    assert [len(same) for same in keys.values()] == [1] * places
    assert len(set.union(*keys.values())) == (places if job is KeyedSteps else places - 1)
    assert len({run_key for _, _, run_key in done}) > places
    assert all(re.fullmatch(rf"{process.id}[-.A-Za-z0-9_]*", key) for key in set.union(*keys.values()))


def test_a_key_names_the_items_of_all_loops() -> None:
    loops = loops_behind()
    outer = loops.each("ab", "outer", None)
    next(outer)
    inner = loops.each(lambda _: [(7, "x"), ("seven", "y")], "inner: any", None)
    keys = [loops.key for _ in inner]

    assert re.fullmatch(r"-outer\.1-[0-9a-f]{24}\.c7", keys[0])
    assert len(keys[1]) == len(keys[0]) + 23
    assert loops.key == "-outer.1"
    assert list(outer) == ["b"]
    assert loops.key == ""
    assert [loops.key for _ in loops.each("abc", "", None, 2)] == ["-2x2", "-3x1"]


def test_long_loops_take_turns(scheduler: Scheduler, done: list[Any]) -> None:
    for name in "ab":
        scheduler.add_job(Turning, {"name": name, "items": 3})

    processes = scheduler.run_pending()

    assert done == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert {(process.refresh().status, process.attempt) for process in processes} == {(Status.DONE, 1)}


def test_misuse_is_refused_with_the_way_out(scheduler: Scheduler) -> None:
    process = run(scheduler, Misusing)

    *turns, twice, mixed = process.result
    assert turns == [f"each(turn={turn!r}): pass seconds above 0, or None" for turn in (0, -1, True, "1")]
    assert "give each loop its own name" in twice
    assert "each(name='other') was started inside another loop" in mixed


def test_a_cursor_that_cannot_be_kept_fails_the_job(scheduler: Scheduler) -> None:
    process = run(scheduler, Unkeepable)

    assert process.is_failed
    assert process.error is not None
    assert "cursor" in process.error.message


def test_a_job_that_raises_interrupted_unasked_has_failed(scheduler: Scheduler) -> None:
    process = run(scheduler, Selfish)

    assert process.is_failed
    assert process.error is not None
    assert process.error.message == "a job raised Interrupted without a request to end"


def test_why_names_loops_and_the_cursors_that_they_have_reached(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Looping, {"items": ["a"], "fails": []})
    [record] = take(store)
    begin(store, record, cursor='{"pages":[{"page":2}],"rows":[]}')

    assert "Its loop each(name='pages') has finished the items up to the cursor {\"page\": 2}." in process.why()
    assert "rows" not in process.why()


def test_why_says_where_the_loops_are(scheduler: Scheduler, store: Store) -> None:
    process = scheduler.add_job(Looping, {"items": ["a"], "fails": []})
    [record] = take(store)
    begin(store, record, cursor='{"":7}')

    assert "Its loop each() has finished 7 items." in process.why()
    assert "no progress" not in process.why()
    end(store, record, HandedBack())
    scheduler.run_pending()
    assert "Its loop each() has finished 1 item." in process.why()


def test_a_place_of_another_kind_is_forgotten() -> None:
    kept: list[str] = []

    def behind(cursor: Any) -> Iterator[tuple[Any, str]]:
        assert cursor is None
        yield from [(1, "a"), (2, "b")]

    loops = Loops('{"was a count":3,"was a cursor":[{"id":7}]}', kept.append, lambda: False)

    assert list(loops.each(behind, "was a count", None)) == ["a", "b"]
    assert list(loops.each("ab", "was a cursor", None)) == ["a", "b"]
    assert kept[-1] == '{"was a count":[2],"was a cursor":2}'


def loops_behind(kept: str | None = None) -> Loops:
    """Return loops that keep nothing."""
    return Loops(kept, lambda _: None, lambda: False)


@pytest.mark.parametrize("name", [7, None, "$oid", "\udc80"])
def test_a_name_that_cannot_be_kept_is_refused_at_once(name: Any) -> None:
    with pytest.raises(ValueError, match=r"each\(name=.*pass text that does not begin"):
        loops_behind().each("ab", name, None)


@pytest.mark.parametrize("turn", [0, -1, True, "60", float("nan")])
def test_a_turn_that_is_no_time_is_refused_at_once(turn: Any) -> None:
    with pytest.raises(ValueError, match=r"each\(turn=.*pass seconds above 0"):
        loops_behind().each("ab", "", turn)


@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "1000"])
def test_a_batch_that_is_no_number_of_items_is_refused_at_once(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"each\(batch=.*pass the number of items in a list"):
        loops_behind().each("ab", "", None, batch)


def test_a_manual_that_is_no_answer_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"each\(manual='yes'\): pass True or False"):
        loops_behind().each("ab", "", None, None, "yes")  # type: ignore[arg-type]


def stopping(items: Any, *, batch: int | None = None, manual: bool = False) -> tuple[Any, list[str], list[bool]]:
    """Return a loop, what it keeps, and a list that is not empty once the node stops."""
    kept: list[str] = []
    stops: list[bool] = []
    loops = Loops(None, kept.append, lambda: bool(stops))
    return loops.each(items, "", None, batch, manual), kept, stops


def test_a_stop_waits_for_the_present_batch_and_costs_none() -> None:
    loop, kept, stops = stopping("abcd", batch=2)
    assert next(loop) == ["a", "b"]
    stops.append(True)

    with pytest.raises(Interrupted):
        next(loop)
    assert kept == ['{"":2}']


def test_a_stop_waits_until_a_manual_loop_has_kept_what_it_has() -> None:
    loop, kept, stops = stopping("abcd", manual=True)
    items = [next(loop)]
    stops.append(True)
    items.append(next(loop))
    loop.keep()

    with pytest.raises(Interrupted):
        next(loop)
    assert (items, kept) == (["a", "b"], ['{"":2}'])


def test_a_manual_loop_of_batches_keeps_what_it_is_told_to() -> None:
    loop, kept, stops = stopping("abcdefg", batch=2, manual=True)
    items = [next(loop), next(loop)]
    loop.keep()
    items.append(next(loop))
    stops.append(True)
    items.append(next(loop))
    loop.keep()

    assert items == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]
    assert kept == ['{"":4}', '{"":7}']


def test_a_turn_is_not_over_before_something_is_kept() -> None:
    loop = loops_behind().each("abc", "", 1e-9, None, True)

    assert [next(loop), next(loop)] == ["a", "b"]
    loop.keep()
    with pytest.raises(Snooze):
        next(loop)


def test_no_loop_begins_while_a_manual_one_has_not_kept_its_items() -> None:
    loops = loops_behind()
    outer = loops.each("ab", "outer", None, None, True)
    next(outer)

    with pytest.raises(RuntimeError, match=r"each\(name='inner'\): the items .* loop 'outer' .*: call its keep\(\)"):
        loops.each("cd", "inner", None)
    outer.keep()
    assert list(loops.each("cd", "inner", None)) == ["c", "d"]


def test_a_loop_does_not_go_on_while_one_inside_of_it_has_not_kept_its_items() -> None:
    loops = loops_behind()
    outer = loops.each("ab", "outer", None)
    next(outer)
    inner = loops.each("cd", "inner", None, None, True)
    assert list(inner) == ["c", "d"]

    with pytest.raises(RuntimeError, match=r"each\(name='outer'\): the items .* loop 'inner' .*: call its keep\(\)"):
        next(outer)


def test_a_function_that_yields_no_pairs_is_named() -> None:
    def no_pairs(_: Any) -> Any:
        yield "ab"

    with pytest.raises(TypeError, match=r"each\(name='x'\): yield pairs of a cursor and an item, not 'ab'"):
        list(loops_behind().each(no_pairs, "x", None))


def test_an_inner_loop_that_is_read_after_the_outer_one_went_on_is_named() -> None:
    loops = loops_behind()
    outer = loops.each("ab", "outer", None)
    next(outer)
    inner = loops.each("cd", "inner", None)
    next(outer)

    with pytest.raises(RuntimeError, match=r"'inner'.* was started inside another loop"):
        next(inner)


@pytest.mark.parametrize("kept", ['{"":', "[3]", '{"$oid":7}'])
def test_a_place_that_cannot_be_read_fails_the_attempt(scheduler: Scheduler, store: Store, kept: str) -> None:
    process = scheduler.add_job(Looping, {"items": ["a"], "fails": []})
    [record] = take(store)
    end(store, replace(begin(store, record), cursor=kept), HandedBack())
    scheduler.run_pending()

    assert process.refresh().status is Status.FAILED
    assert process.error is not None
    assert "the positions of the loops of this job (each) cannot be read" in process.error.message
