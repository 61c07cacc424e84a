"""Whole messages through a socket pair: any size, any split, any interruption."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskqueue.daemon.protocol import channel as module
from taskqueue.daemon.protocol.channel import LARGEST, Channel, ChannelBroken, ChannelClosed, pair
from taskqueue.daemon.runtime.child_process import allow_signals, fork

MOST = 30.0  # seconds that anything may take
MIB = 1024 * 1024

Ends = tuple[Channel, Channel]


class Interruption(BaseException):
    """What a signal handler raises."""


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A channel, and its other end as a bare socket that can send anything."""
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    yield ours, channel
    ours.close()
    channel.close()


def framed(payload: bytes) -> bytes:
    return struct.pack(">4sI", b"\xf4tq\x00", len(payload)) + payload


def exchange(sender: Channel, receiver: Channel) -> list[bytes]:
    """Return all that arrives until the sender has nothing left."""
    arrived = receiver.receive()
    while sender.unsent:
        sender.flush()
        arrived += receiver.receive()
    return arrived + receiver.receive()


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    ours, theirs = ends
    for payload in (b"one", b"", b"\x00\xff" * 10, b"four"):
        ours.send(payload)

    assert theirs.receive() == [b"one", b"", b"\x00\xff" * 10, b"four"]
    assert theirs.receive() == []


def test_messages_sent_together_arrive_apart(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"one", b"", b"three")
    ours.send()

    assert theirs.receive() == [b"one", b"", b"three"]


@pytest.mark.parametrize(
    "junk",
    [b"hello world, this is not a message", b"x", bytes(3), bytes(12), bytes([0, 0, 0, 0, 1, 0, 0, 0]), b"\xf4tq"],
    ids=["text", "letter", "few zeros", "zeros", "length", "half a mark"],
)
def test_what_is_no_message_breaks_a_channel_behind_those_that_came_before(
    raw: tuple[socket.socket, Channel], junk: bytes
) -> None:
    ours, channel = raw
    ours.sendall(framed(b"one") + junk + framed(b"two"))

    assert channel.receive() == [b"one"]
    assert channel.is_broken
    with pytest.raises(ChannelBroken, match="are not a message"):
        channel.receive()
    with pytest.raises(ChannelBroken):
        channel.wait()


def test_a_message_that_is_longer_than_any_breaks_a_channel(raw: tuple[socket.socket, Channel]) -> None:
    ours, channel = raw
    ours.sendall(struct.pack(">4sI", b"\xf4tq\x00", LARGEST + 1))

    with pytest.raises(ChannelBroken, match="268,435,457 bytes"):
        channel.receive()


def test_both_ends_can_send(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"run")
    theirs.send(b"ended")

    assert (ours.receive(), theirs.receive()) == ([b"ended"], [b"run"])


def test_a_send_never_blocks_and_what_does_not_fit_waits_for_room(ends: Ends) -> None:
    ours, theirs = ends
    large = os.urandom(8 * MIB)

    ours.send(large)
    ours.send(b"after it")

    assert ours.unsent
    assert exchange(ours, theirs) == [large, b"after it"]
    assert not ours.unsent


def test_flushing_nothing_does_nothing(ends: Ends) -> None:
    ours, _ = ends
    ours.flush()

    assert not ours.unsent


def test_one_read_takes_a_bounded_part_so_that_a_fast_writer_does_not_keep_the_reader(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"x" * MIB)
    theirs.receive()
    first = sum(map(len, theirs._inbox[1]))
    theirs.receive()

    assert 0 < first < sum(map(len, theirs._inbox[1]))


@given(st.lists(st.binary(max_size=200), max_size=12), st.data())
def test_messages_cut_anywhere_are_put_together(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, payloads))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    arrived = []
    try:
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            ours.sendall(stream[start:end])
            arrived += channel.receive()
        assert arrived == payloads
    finally:
        ours.close()
        channel.close()


# The end of a channel.


def test_what_was_sent_before_the_end_arrives_before_it(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"last words")
    ours.close()

    assert theirs.receive() == [b"last words"]
    with pytest.raises(ChannelClosed, match="the other end of the channel is closed"):
        theirs.receive()
    with pytest.raises(ChannelClosed):
        theirs.receive()


def test_a_sender_killed_in_the_middle_of_a_message_leaves_no_message(raw: tuple[socket.socket, Channel]) -> None:
    ours, channel = raw
    ours.sendall(framed(b"whole") + framed(b"never whole")[:-3])
    ours.close()

    assert channel.receive() == [b"whole"]
    with pytest.raises(ChannelClosed, match="16 bytes into a message"):
        channel.receive()


def test_what_is_sent_to_a_dead_peer_is_dropped_and_the_reader_hears_of_the_end(ends: Ends) -> None:
    ours, theirs = ends
    theirs.close()
    ours.send(b"x" * MIB)

    assert not ours.unsent
    with pytest.raises(ChannelClosed):
        ours.receive()


def test_a_peer_that_died_without_reading_is_an_end_like_any_other(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"never read")
    theirs.send(b"read")
    theirs.close()

    assert ours.receive() == [b"read"]
    with pytest.raises(ChannelClosed):  # the kernel says ECONNRESET here
        ours.receive()
    with pytest.raises(ChannelClosed):
        ours.wait(MOST)


def test_an_end_that_is_closed_here_says_so(ends: Ends) -> None:
    ours, _ = ends
    ours.close()

    with pytest.raises(ChannelClosed, match="cannot send"):
        ours.send(b"?")
    with pytest.raises(ChannelClosed, match="cannot receive"):
        ours.receive()


def test_closing_drops_what_waits_for_room_so_that_a_forked_child_does_not_send_it(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"x" * (8 * MIB))
    ours.close()

    arrived: list[list[bytes]] = []
    with pytest.raises(ChannelClosed, match="into a message"):
        arrived.extend(iter(theirs.receive, None))
    assert not any(arrived)


# A worker waits.


def test_wait_returns_one_message_at_a_time(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"one")
    ours.send(b"two")

    assert [theirs.wait(MOST), theirs.wait(MOST)] == [b"one", b"two"]


def test_wait_returns_none_when_nothing_came_in_time(ends: Ends) -> None:
    ours, theirs = ends

    assert theirs.wait(0.0) is None
    assert theirs.wait(0.01) is None
    ours.send(b"late")
    assert theirs.wait(None) == b"late"


def test_wait_returns_none_when_the_other_descriptor_is_readable(ends: Ends) -> None:
    _, theirs = ends
    reader, writer = os.pipe()
    os.write(writer, b"!")
    try:
        assert theirs.wait(MOST, wake_on=reader) is None
    finally:
        os.close(reader)
        os.close(writer)


def test_wait_hands_out_what_is_there_before_it_tells_of_the_end(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"one")
    ours.send(b"two")
    ours.close()

    assert [theirs.wait(MOST), theirs.wait(MOST)] == [b"one", b"two"]
    with pytest.raises(ChannelClosed):
        theirs.wait(MOST)


def test_wait_and_receive_can_take_turns(ends: Ends) -> None:
    ours, theirs = ends
    for payload in (b"one", b"two", b"three"):
        ours.send(payload)

    assert theirs.wait(MOST) == b"one"
    ours.send(b"four")
    assert theirs.receive() == [b"two", b"three", b"four"]


def test_wait_sends_meanwhile_what_waits_for_room(ends: Ends) -> None:
    """Two ends that send megabytes to each other and then wait do not wait for ever."""
    ours, theirs = ends
    large = os.urandom(4 * MIB)

    def echo() -> None:
        message = theirs.wait(MOST)
        assert message is not None
        theirs.send(message)
        theirs.flush_blocking(MOST)

    child = fork(echo, name="echo", keep=[theirs.fileno()])
    ours.send(large)
    try:
        assert ours.wait(MOST) == large
        assert child.reap().code == 0
    finally:
        child.close()


def test_drain_gives_up_when_its_time_is_over(ends: Ends) -> None:
    ours, _ = ends
    ours.send(b"x" * (8 * MIB))
    ours.flush_blocking(0.01)

    assert ours.unsent


def test_drain_ends_when_the_peer_is_gone(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(b"x" * (8 * MIB))
    theirs.close()
    ours.flush_blocking()

    assert not ours.unsent


# Signals that raise.


def interrupt(call: Callable[[], object], number: int) -> bool:
    """Run ``call``, raise at its ``number``-th instruction in the file of the channel, and return whether it had one.

    Python runs signal handlers between instructions, so this is what a handler that raises can do at worst. At some
    instructions Python then takes the handled exception for one that is still handled, and shows it in every traceback
    to come: that ends with the thread.
    """
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interruption
        return trace

    def run() -> bool:
        sys.settrace(trace)
        try:
            call()
        except Interruption:
            return True
        finally:
            sys.settrace(None)
        return False

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(run).result()


def test_an_interruption_at_any_instruction_of_a_send_leaves_whole_messages() -> None:
    for number in range(10_000):
        ours, theirs = pair()
        ours.send(b"first")
        interrupted = interrupt(lambda: ours.send(b"interrupted"), number)  # noqa: B023
        ours.send(b"last")
        arrived = exchange(ours, theirs)
        ours.close()
        theirs.close()

        assert arrived in ([b"first", b"interrupted", b"last"], [b"first", b"last"]), number
        if not interrupted:
            break
    assert number > 50


def test_an_interruption_at_any_instruction_of_a_large_send_leaves_whole_messages() -> None:
    large = os.urandom(MIB)
    for number in range(10_000):
        ours, theirs = pair()
        ours.send(large)
        theirs._read()  # there is room again
        interrupted = interrupt(ours.flush, number)
        ours.send(b"last")
        arrived = exchange(ours, theirs)
        ours.close()
        theirs.close()

        assert arrived == [large, b"last"], number
        if not interrupted:
            break
    assert number > 20
    assert sys.exc_info()[1] is None


@pytest.mark.parametrize("take", [lambda end: end.receive(), lambda end: end.wait(MOST)], ids=["receive", "wait"])
def test_an_interruption_at_any_instruction_of_a_read_leaves_whole_messages(take: Callable[[Channel], object]) -> None:
    for number in range(10_000):
        ours, theirs = socket.socketpair()
        channel = Channel(theirs)
        ours.sendall(framed(b"first") + framed(b"second") + framed(b"cut")[:9])
        interrupted = interrupt(lambda: take(channel), number)  # noqa: B023
        ours.sendall(framed(b"cut")[9:] + framed(b"last"))
        ours.close()
        arrived = channel.receive()
        channel.close()

        whole = [b"first", b"second", b"cut", b"last"]
        assert arrived == whole[-len(arrived) :], number  # what the interrupted call was about to return may be missing
        assert arrived[-2:] == [b"cut", b"last"], number
        if not interrupted:
            break
    assert number > 50


def test_real_signals_that_raise_while_a_worker_sends_damage_nothing(ends: Ends) -> None:
    ours, theirs = ends

    def main() -> int:
        def raise_interruption(*_: object) -> None:
            raise Interruption

        signal.signal(signal.SIGALRM, raise_interruption)
        interruptions = 0
        number = 0
        allow_signals()
        while interruptions < 200:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                while True:
                    number += 1
                    theirs.send(b"%d " % number * 1000)
                    theirs.flush_blocking()
            except Interruption:
                interruptions += 1
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        theirs.flush_blocking()
        return 0

    child = fork(main, name="interrupted", keep=[theirs.fileno()])
    theirs.close()
    last = 0
    try:
        while True:
            words = (ours.wait(MOST) or b"").split()
            assert len(words) == 1000
            assert len(set(words)) == 1
            assert int(words[0]) > last
            last = int(words[0])
    except ChannelClosed:
        assert last > 0
        assert child.reap().code == 0
    finally:
        child.close()


def test_a_handler_that_raises_ends_a_wait_and_the_next_message_arrives(ends: Ends) -> None:
    ours, theirs = ends
    reader, writer = os.pipe()

    def main() -> int:
        def raise_interruption(*_: object) -> None:
            raise Interruption

        signal.signal(signal.SIGTERM, raise_interruption)
        allow_signals()
        try:
            os.write(writer, b"!")
            theirs.wait()
        except Interruption:
            return 0 if theirs.wait() == b"run" else 1
        return 2

    child = fork(main, name="waits", keep=[theirs.fileno(), writer])
    try:
        select.select([reader], [], [], MOST)
        child.signal(signal.SIGTERM)
        ours.send(b"run")
        assert child.reap().code == 0
    finally:
        child.close()
        os.close(reader)
        os.close(writer)
