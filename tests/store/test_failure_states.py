"""Failures are muted, resolved and opened again: every store keeps the decisions, also when its jobs are flushed."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from taskqueue.errors import InvalidOption
from taskqueue.insight.failure_groups import FailureGroup
from taskqueue.insight.failure_states import PREFIX, FailureDecision, FailureState, decisions_of, facts_of
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.model.fingerprint import group_id
from taskqueue.model.lifecycle.outcomes import Done, Failed
from taskqueue.model.record import Failure, Options
from taskqueue.model.retry import NO_RETRY
from taskqueue.scheduler import failure_states
from taskqueue.scheduler.operations import StoreOperations
from taskqueue.store import Lease, Store
from tests.insight.test_failure_groups import run_all
from tests.nodes import eventually
from tests.store.conftest import Opener
from tests.store.records import WEB_1, a_record

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
ID = group_id("shop:MakeInvoice", "KeyError: 'vat'")


def fail(store: Store, job: str = "shop:MakeInvoice") -> None:
    """Let jobs of a class that has not failed for a day fail now."""
    now = store.now()
    options = Options(retry=NO_RETRY)
    before = [a_record(job=job, created_at=now - DAY, ready_at=now - DAY, options=options) for _ in range(100)]
    run_all(store, before, Done(), now - DAY)
    done = [a_record(job=job, created_at=now, ready_at=now, options=options) for _ in range(40)]
    run_all(store, done, Done(), now)
    failing = [a_record(job=job, created_at=now, ready_at=now, options=options) for _ in range(10)]
    run_all(store, failing, Failed(failure=Failure(type="KeyError", message="'vat'")), now)


def overview(store: Store) -> Overview:
    """Return an overview that has the failures."""
    eventually(lambda: OverviewReader(store).read().groups)
    return OverviewReader(store).read()


def overview_of(store: Store) -> Overview:
    """Return a first look at the store."""
    return OverviewReader(store).read()


def group(store: Store) -> FailureGroup:
    """Return the only group."""
    [found] = overview(store).groups
    return found


def findings(store: Store) -> list[str]:
    """Return the findings about classes."""
    return [need.says for need in overview(store).needs if need.name == "shop:MakeInvoice"]


def test_a_failure_is_muted_resolved_and_opened_again_by_any_client(opener: Opener) -> None:
    node, other = opener(), opener()
    operations = StoreOperations(opener())
    fail(node)
    assert group(other).id == ID
    assert len(findings(other)) == 1

    muted = operations.mute(ID, "2h", "the tax service is down", by="ann")
    assert (muted.state, muted.by, muted.reason) == (FailureState.MUTED, "ann", "the tax service is down")
    assert muted.until == muted.since + timedelta(hours=2)
    assert group(other).decision == muted
    assert findings(other) == []

    resolved = operations.resolve("KeyError: 'vat'", by="bob")
    assert (group(other).state, overview(other).decisions) == (FailureState.RESOLVED, [resolved])
    assert findings(other) == []

    assert operations.reopen(ID)
    assert not operations.reopen(ID)
    assert group(other).state is FailureState.OPEN
    assert len(findings(other)) == 1


def test_an_error_that_fails_again_stays_regressed_for_days_until_it_is_decided_again(store: Store) -> None:
    hour = store.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    for minutes, error in ((5, "KeyError"), (20, "KeyError"), (5, "OSError")):
        at = hour + minutes * MINUTE
        failing = a_record(job="shop:MakeInvoice", created_at=at, ready_at=at, options=Options(retry=NO_RETRY))
        run_all(store, [failing], Failed(failure=Failure(type=error, message="'vat'")), at)
    for error in ("KeyError", "OSError"):
        keep(store, f"{error}: 'vat'", state=FailureState.RESOLVED, since=hour + 10 * MINUTE, job="shop:MakeInvoice")

    [regressed] = eventually(lambda: overview_of(store).groups)

    assert (regressed.id, regressed.state, regressed.number) == (ID, FailureState.REGRESSED, 0)
    assert regressed.last_at == hour + 20 * MINUTE
    [says] = findings(store)
    assert says.startswith("shop:MakeInvoice failed again with an error that was resolved ")
    assert "by ann: KeyError: 'vat', last " in says

    StoreOperations(store).resolve(ID)
    assert overview_of(store).groups == []
    assert {decision.state for decision in overview_of(store).decisions} == {FailureState.RESOLVED}


def test_a_mute_remembers_how_large_the_share_was(store: Store) -> None:
    fail(store)
    group(store)

    muted = StoreOperations(store).mute(ID)

    assert muted.share == 0.2
    assert list(decisions_of(store.leases()).values()) == [muted]
    assert StoreOperations(store).mute(ID, "2h").share is None


def test_a_decision_survives_a_flush(store: Store) -> None:
    fail(store)
    group(store)
    decision = StoreOperations(store).resolve(ID, "fixed ✔", by="ann")

    store.flush()

    assert list(decisions_of(store.leases()).values()) == [decision]


def test_an_unknown_failure_is_refused_with_the_way_out(store: Store) -> None:
    for job in ("shop:MakeInvoice", "shop:SendInvoice"):
        fail(store, job)
    eventually(lambda: len(overview(store).groups) == 2)
    operations = StoreOperations(store)

    with pytest.raises(InvalidOption, match="no attempt failed with 'nothing' in the last 7 days"):
        operations.mute("nothing")
    with pytest.raises(
        InvalidOption, match=rf"several classes have failure .*: pass an id: .*{ID} \(shop:MakeInvoice\)"
    ):
        operations.resolve("KeyError: 'vat'")
    with pytest.raises(InvalidOption, match="failure=7: pass the id of a failure"):
        operations.reopen(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="is not after now"):
        operations.mute(ID, store.now() - MINUTE)
    assert decisions_of(store.leases()) == {}


def test_the_number_of_decisions_is_bounded_and_those_that_have_ended_go_first(store: Store) -> None:
    fail(store)
    group(store)
    now = store.now()
    names = [f"Error{number}" for number in range(failure_states.MOST + 1)]
    for number, name in enumerate(names):
        keep(store, name, until=now - MINUTE if number == 7 else None, since=now - MINUTE * (300 - number))

    StoreOperations(store).mute(ID)

    kept = [decision.fingerprint for decision in decisions_of(store.leases()).values()]
    assert kept == [*(name for name in names[1:] if name != "Error7"), "KeyError: 'vat'"]
    assert len(kept) == failure_states.MOST


def keep(
    store: Store,
    fingerprint: str,
    *,
    since: datetime,
    until: datetime | None = None,
    state: FailureState = FailureState.MUTED,
    job: str = "shop:A",
) -> None:
    """Keep a decision of that time."""
    now = store.now()
    decision = FailureDecision(job=job, fingerprint=fingerprint, state=state, since=since, by="ann", until=until)
    lease = Lease(
        name=f"{PREFIX}{decision.id}",
        holder=failure_states.KEPT_BY,
        since=now,
        until=now,
        about=facts_of(decision),
    )
    store.acquire(lease, now)


def test_a_decision_that_cannot_be_read_is_left_out(store: Store) -> None:
    fail(store)
    now = store.now()
    store.acquire(Lease(name="failure:abc", holder=WEB_1, since=now, until=now, about={"job": "shop:A"}), now)

    assert group(store).state is FailureState.OPEN
    assert overview(store).decisions == []
