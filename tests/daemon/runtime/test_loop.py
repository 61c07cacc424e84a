"""The loop: descriptors, moments, signals and turns, with real pipes, forks and signals."""

from __future__ import annotations

import functools
import itertools
import math
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, ChannelClosed, pair
from taskqueue.daemon.protocol.codec import decode, encode
from taskqueue.daemon.protocol.messages import Message, Recycle
from taskqueue.daemon.runtime.child_process import allow_signals, fork
from taskqueue.daemon.runtime.loop import Loop

MOST = 30.0  # seconds that anything may take
MIB = 1024 * 1024


class StuckLoop(Exception):
    """What should have happened in the loop did not."""


class Turns:
    """Count the turns of a loop."""

    def __init__(self, loop: Loop) -> None:
        self.count = 0
        loop.after_turn(self._on_turn)

    def _on_turn(self) -> None:
        self.count += 1


def give_up() -> None:
    raise StuckLoop


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A loop that cannot run for ever."""
    loop = Loop()
    loop.at(time.monotonic() + MOST, give_up)
    yield loop
    loop.close()


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


Ends = tuple[Channel, Channel]
Sockets = tuple[socket.socket, socket.socket]


# Descriptors.


def test_what_is_readable_is_called_in_every_turn_until_it_is_read(loop: Loop, sockets: Sockets) -> None:
    reader, writer = sockets
    read: list[bytes] = []

    def on_readable() -> None:
        read.append(reader.recv(1))
        if len(read) == 3:
            loop.stop()

    loop.watch(reader, on_readable)
    writer.sendall(b"abc")
    loop.run()

    assert read == [b"a", b"b", b"c"]


def test_a_bare_descriptor_can_be_watched(loop: Loop) -> None:
    reader, writer = os.pipe()
    loop.watch(reader, loop.stop)
    os.close(writer)
    loop.run()  # the end is readable, too
    loop.unwatch(reader)
    os.close(reader)


def test_what_is_not_watched_any_more_is_not_called(loop: Loop, sockets: Sockets) -> None:
    reader, writer = sockets
    loop.watch(reader, give_up)
    loop.unwatch(reader)
    loop.unwatch(reader)
    writer.send(b"x")
    loop.soon(loop.stop)
    loop.run()


def test_a_callback_may_close_a_descriptor_that_is_ready_in_the_same_turn(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    called: list[int] = []

    def on_readable(index: int) -> None:
        called.append(index)
        for reader, writer in pairs:
            loop.unwatch(reader)
            reader.close()
            writer.close()
        loop.stop()

    for index, (reader, writer) in enumerate(pairs):
        loop.watch(reader, functools.partial(on_readable, index))
        writer.send(b"x")
    loop.run()

    assert len(called) == 1


def test_a_new_descriptor_with_the_number_of_a_closed_one_does_not_get_its_event(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    fresh: list[socket.socket] = []

    def on_readable() -> None:
        for reader, _ in pairs:
            loop.unwatch(reader)
        number = pairs[0][0].fileno(), pairs[1][0].fileno()
        for reader, _ in pairs:
            reader.close()
        fresh.extend(socket.socketpair())
        assert {end.fileno() for end in fresh} == set(number)
        for end in fresh:
            loop.watch(end, give_up)  # nothing has been sent to it
        loop.soon(loop.stop)

    for reader, writer in pairs:
        loop.watch(reader, on_readable)
        writer.send(b"x")
    loop.run()

    for end in fresh:
        loop.unwatch(end)
        end.close()
    for _, writer in pairs:
        writer.close()


def test_an_error_in_a_callback_ends_the_run(loop: Loop) -> None:
    loop.soon(give_up)

    with pytest.raises(StuckLoop):
        loop.run()


# Channels.


def test_messages_are_called_back_and_the_end_once(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    heard: list[bytes] = []

    def on_close() -> None:
        heard.append(b"closed")
        loop.soon(loop.stop)

    loop.watch_channel(ours, heard.append, on_close, give_up_broken)
    theirs.send(b"one")
    theirs.send(b"two")
    theirs.close()
    loop.run()

    assert heard == [b"one", b"two", b"closed"]


def test_megabytes_are_sent_and_received_while_the_loop_goes_on(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    large = os.urandom(8 * MIB)
    heard: list[bytes] = []
    turns = Turns(loop)

    def on_message(payload: bytes) -> None:
        heard.append(payload)
        loop.stop()

    loop.watch_channel(ours, give_up_on_message, give_up, give_up_broken)
    loop.watch_channel(theirs, on_message, give_up, give_up_broken)
    loop.soon(lambda: ours.send(large))
    loop.run()

    assert heard == [large]
    assert turns.count > 10  # it came in many parts
    assert not ours.unsent


def give_up_on_message(payload: bytes) -> None:
    raise StuckLoop(payload)


def give_up_broken(broken: ChannelBroken) -> None:
    raise StuckLoop(broken)


def test_what_is_no_message_ends_the_watch_behind_the_messages_before(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    heard: list[bytes] = []
    broken: list[str] = []

    def on_broken(error: ChannelBroken) -> None:
        broken.append(str(error))
        loop.soon(loop.stop)

    loop.watch_channel(ours, heard.append, give_up, on_broken)
    theirs.send(b"one")
    os.write(theirs.fileno(), b"progress: 50 %")
    loop.run()

    assert heard == [b"one"]
    assert broken == ["the channel received bytes that are not a message: b'progress: 50 %'"]


def test_a_message_that_cannot_be_understood_ends_the_watch(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    heard: list[Message] = []
    loop.watch_channel(ours, lambda payload: heard.append(decode(payload)), give_up, lambda _: loop.stop())
    theirs.send(encode(Recycle()), b'["Nonsense"]', encode(Recycle()))
    loop.run()

    assert heard == [Recycle()]


def test_a_channel_with_nothing_to_send_does_not_keep_the_loop_awake(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    turns = Turns(loop)
    loop.watch_channel(ours, give_up_on_message, give_up, give_up_broken)
    loop.watch_channel(theirs, lambda _: None, give_up, give_up_broken)
    ours.send(b"x" * MIB)
    loop.at(time.monotonic() + 0.3, loop.stop)
    loop.run()

    assert turns.count < 200  # a socket is nearly always writable: a loop that watched for that would spin


def test_a_message_may_end_the_watch_and_those_behind_it_are_not_called(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    heard: list[bytes] = []

    def on_message(payload: bytes) -> None:
        heard.append(payload)
        loop.unwatch(ours)
        ours.close()
        loop.soon(loop.stop)

    loop.watch_channel(ours, on_message, give_up, give_up_broken)
    theirs.send(b"leave")
    theirs.send(b"never heard")
    loop.run()

    assert heard == [b"leave"]


def test_a_channel_is_not_watched_any_more_when_its_end_is_called_back(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends

    def on_close() -> None:
        ours.close()
        fresh.extend(pair())  # one of them gets the number that was given back
        for channel in fresh:
            loop.watch_channel(channel, give_up_on_message, give_up, give_up_broken)
        loop.soon(loop.stop)

    fresh: list[Channel] = []
    loop.watch_channel(ours, give_up_on_message, on_close, give_up_broken)
    theirs.close()
    loop.run()

    for channel in fresh:
        loop.unwatch(channel)
        channel.close()


# Moments.


def test_callbacks_come_in_the_order_of_their_moments_and_those_of_one_moment_as_they_were_set(loop: Loop) -> None:
    called: list[str] = []
    now = time.monotonic()
    loop.at(now + 0.02, loop.stop)
    loop.at(now + 0.01, lambda: called.append("second"))
    loop.at(now - 1, lambda: called.append("overdue"))
    loop.at(now + 0.01, lambda: called.append("third"))
    loop.run()

    assert called == ["overdue", "second", "third"]


def test_no_callback_comes_before_its_moment(loop: Loop) -> None:
    deadline = time.monotonic() + 0.05
    loop.at(deadline, loop.stop)
    loop.run()

    assert time.monotonic() >= deadline


def test_a_canceled_callback_does_not_come(loop: Loop) -> None:
    timer = loop.at(time.monotonic(), give_up)
    timer.cancel()
    timer.cancel()
    loop.at(time.monotonic(), loop.stop)
    loop.run()

    assert not timer.is_pending


def test_a_canceled_timer_does_not_wake_the_process(loop: Loop) -> None:
    turns = Turns(loop)
    now = time.monotonic()
    loop.at(now + 0.01, give_up).cancel()
    loop.at(now + 0.03, loop.stop)
    loop.run()

    assert turns.count == 1


def test_a_callback_may_cancel_another_of_the_same_moment(loop: Loop) -> None:
    now = time.monotonic()
    loop.at(now - 1, lambda: later.cancel())  # noqa: PLW0108 - there is no later one yet
    later = loop.at(now, give_up)
    loop.at(now, loop.stop)
    loop.run()


def test_canceling_what_has_been_called_does_nothing(loop: Loop) -> None:
    timer = loop.at(time.monotonic(), loop.stop)
    loop.run()
    timer.cancel()

    assert not timer.is_pending


def test_a_callback_that_asks_for_a_moment_gone_by_does_not_keep_the_turn(loop: Loop) -> None:
    turns = Turns(loop)
    calls = itertools.count()

    def again() -> None:
        loop.at(time.monotonic() - 1, loop.stop if next(calls) == 20 else again)

    loop.soon(again)
    loop.run()

    assert turns.count >= 20


def test_canceled_timers_do_not_pile_up_until_their_moments(loop: Loop) -> None:
    kept = loop.at(time.monotonic() + 7200, give_up)
    for _ in range(10_000):
        loop.at(time.monotonic() + 3600, give_up).cancel()

    assert len(loop._timers) < 500
    assert kept in [timer for *_, timer in loop._timers]


@pytest.mark.parametrize("ahead", [365 * 86_400.0, math.inf])
def test_a_moment_in_a_year_is_no_error(ahead: float, sockets: Sockets) -> None:
    loop = Loop()
    loop.at(time.monotonic() + ahead, give_up)
    loop.watch(sockets[0], loop.stop)
    sockets[1].send(b"x")
    loop.run()
    loop.close()


def test_a_loop_without_timers_waits_for_descriptors(sockets: Sockets) -> None:
    loop = Loop()
    loop.watch(sockets[0], loop.stop)
    sockets[1].send(b"x")
    loop.run()
    loop.close()


# Turns.


def test_soon_comes_once_and_in_order(loop: Loop) -> None:
    called: list[int] = []
    for number in range(3):
        loop.soon(functools.partial(called.append, number))
    loop.soon(lambda: loop.soon(loop.stop))
    loop.run()

    assert called == [0, 1, 2]


def test_after_turn_comes_once_when_all_that_was_ready_has_been_dealt_with(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    batch: list[bytes] = []
    commits: list[list[bytes]] = []

    def commit() -> None:
        if batch:
            commits.append(batch.copy())
            loop.stop()

    loop.watch_channel(ours, batch.append, give_up, give_up_broken)
    loop.after_turn(commit)
    for number in range(5):
        theirs.send(b"%d" % number)
    loop.run()

    assert commits == [[b"0", b"1", b"2", b"3", b"4"]]  # a group commit


def test_a_stopped_loop_can_run_again(loop: Loop) -> None:
    for _ in range(2):
        loop.soon(loop.stop)
        loop.run()


# Signals.


def test_signals_are_called_back_in_the_loop(loop: Loop) -> None:
    called: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: called.append("usr1"))
    loop.on_signal(signal.SIGUSR2, loop.stop)
    for signum in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
        signal.raise_signal(signum)
    assert called == []  # the handler itself did nothing
    loop.run()

    assert called == ["usr1", "usr1"]


def test_a_signal_wakes_a_loop_that_waits(loop: Loop) -> None:
    loop.on_signal(signal.SIGUSR1, loop.stop)
    parent = os.getpid()
    child = fork(lambda: os.kill(parent, signal.SIGUSR1), name="waker")
    loop.run()

    assert child.reap().code == 0
    child.close()


def test_the_last_callback_of_a_signal_counts(loop: Loop) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    loop.on_signal(signal.SIGUSR1, give_up)
    loop.on_signal(signal.SIGUSR1, loop.stop)
    signal.raise_signal(signal.SIGUSR1)
    loop.run()
    loop.close()

    assert signal.getsignal(signal.SIGUSR1) == before


def test_signals_of_others_are_not_the_loops(loop: Loop) -> None:
    loop.on_signal(signal.SIGUSR1, loop.stop)
    others: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda signum, _: others.append(signum))
    try:
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR1)
        loop.run()
    finally:
        signal.signal(signal.SIGUSR2, before)

    assert others == [signal.SIGUSR2]


def test_closing_the_loop_gives_the_signals_back(sockets: Sockets) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    loop = Loop()
    loop.on_signal(signal.SIGUSR1, give_up)
    loop.watch(sockets[0], give_up)
    loop.close()

    assert signal.getsignal(signal.SIGUSR1) == before
    assert signal.set_wakeup_fd(-1) == -1
    assert sockets[0].fileno() >= 0  # what was watched is its owner's


# Children.


def test_the_death_of_a_child_is_an_event(loop: Loop) -> None:
    def main() -> None:
        allow_signals()
        signal.pause()

    children = [fork(main, name=f"worker {number}") for number in range(5)]
    ended: list[int | None] = []

    def on_exit(index: int) -> None:
        child = children[index]
        loop.unwatch(child)
        ended.append(child.reap().signal)
        child.close()
        if len(ended) == len(children):
            loop.stop()

    for index, child in enumerate(children):
        loop.watch(child, functools.partial(on_exit, index))
        child.signal(signal.SIGTERM)
    loop.run()

    assert ended == [signal.SIGTERM] * 5  # PW-22: none is lost when all die at once


def test_a_child_that_is_gone_ends_its_channel(loop: Loop, ends: Ends) -> None:
    ours, theirs = ends
    child = fork(lambda: theirs.send(b"last words"), name="worker", keep=[theirs.fileno()])
    theirs.close()
    heard: list[bytes] = []
    loop.watch_channel(ours, heard.append, loop.stop, give_up_broken)
    loop.run()

    assert heard == [b"last words"]
    with pytest.raises(ChannelClosed):
        ours.receive()
    child.reap()
    child.close()
