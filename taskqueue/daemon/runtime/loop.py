"""Event loop: calls back for readable descriptors, timers and signals, one at a time, in one thread.

The loop waits in epoll until a descriptor is ready or the next timer is due; it never sleeps or polls. An exception in
a callback ends ``run``. There are timers on its own clock and on the clock of the store, and periodic ones.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from taskqueue.daemon.protocol.channel import Channel, ChannelBroken, ChannelClosed

Callback = Callable[[], None]

_LONGEST_WAIT = 86_400.0  # seconds; epoll takes no more than 24 days of milliseconds
_FEW_TIMERS = 64  # canceled timers that may stay in the heap
_TICK = 0.001  # seconds; epoll counts in milliseconds, and rounds up
_SELECTABLE = 1024  # select(2) takes the descriptors below this: a parent may have left all of them open
_AT_ONCE = 64  # descriptors per turn; by default Python allocates room for a thousand at each call


class HasFileno(Protocol):
    """An object with a descriptor: a socket, a child, a bell, a channel."""

    def fileno(self) -> int: ...


@dataclass(eq=False, slots=True)
class _Watch:
    """The callback for one descriptor; its identity distinguishes it from a later user of the same number."""

    source: int | HasFileno
    on_ready: Callback
    channel: Channel | None = None
    events: int = select.EPOLLIN


@dataclass(eq=False, slots=True)
class Timer:
    """A callback that is due at ``deadline``."""

    deadline: float
    _callback: Callback | None
    _on_cancel: Callback

    def cancel(self) -> None:
        """Do not call back; do nothing if the timer has fired or was canceled."""
        if self._callback is not None:
            self._callback = None
            self._on_cancel()

    @property
    def is_pending(self) -> bool:
        return self._callback is not None

    def fire(self) -> None:
        """Call back now, unless the timer has fired or was canceled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Loop:
    """A loop for the main thread of one process. Times are seconds of ``time.monotonic``."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, _Watch] = {}
        self._channels: dict[int, _Watch] = {}
        self._timers: list[tuple[float, int, Timer]] = []  # tuples, because the interpreter itself compares them
        self._numbers = itertools.count()  # timers with the same deadline fire in the order in which they were set
        self._canceled = 0
        self._soon: deque[Callback] = deque()
        self._after_turn: list[Callback] = []
        self._signals: dict[int, Callback] = {}
        self._handlers_before: dict[int, Any] = {}
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._running = False

    def watch(self, source: int | HasFileno, on_ready: Callback) -> None:
        """Call ``on_ready`` in every turn in which ``source`` is readable or at its end of file."""
        self._add(_Watch(source, on_ready))

    def watch_writable(self, source: int | HasFileno, on_ready: Callback) -> None:
        """Call ``on_ready`` in every turn in which ``source`` takes data, or has an error."""
        self._add(_Watch(source, on_ready, events=select.EPOLLOUT))

    def unwatch(self, source: int | HasFileno) -> None:
        """Stop watching ``source``. Call this before closing it."""
        number = _number_of(source)
        if self._watches.pop(number, None) is not None:
            self._channels.pop(number, None)
            with contextlib.suppress(OSError):  # closed already
                self._epoll.unregister(number)

    def watch_channel(
        self,
        channel: Channel,
        on_message: Callable[[bytes], None],
        on_close: Callback,
        on_broken: Callable[[ChannelBroken], None],
    ) -> None:
        """Call ``on_message`` with each message of ``channel``, and once ``on_close`` when no more can come.

        If the channel receives bytes that are not a message, or ``on_message`` raises ``ChannelBroken``, it calls
        ``on_broken`` instead. Before either call the loop stops watching the channel; its owner closes it. The loop
        also sends data that the channel could not send at once.
        """

        def on_ready() -> None:
            channel.flush()
            try:
                messages = channel.receive()
            except ChannelBroken as broken:
                end(broken)
                return
            except ChannelClosed:
                self.unwatch(channel)
                on_close()
                return
            try:
                for message in messages:
                    if self._watches.get(number) is watch:
                        on_message(message)
                if channel.is_broken and self._watches.get(number) is watch:
                    channel.receive()
            except ChannelBroken as broken:
                end(broken)

        def end(broken: ChannelBroken) -> None:
            self.unwatch(channel)
            on_broken(broken)

        number = channel.fileno()
        watch = _Watch(channel, on_ready, channel)
        self._add(watch)
        self._channels[number] = watch

    def at(self, deadline: float, callback: Callback) -> Timer:
        """Call ``callback`` once when ``time.monotonic()`` has reached ``deadline``."""
        timer = Timer(deadline, callback, self._on_cancel)
        heapq.heappush(self._timers, (deadline, next(self._numbers), timer))
        return timer

    def soon(self, callback: Callback) -> None:
        """Call ``callback`` once, in this turn if it is still possible, else in the next."""
        self._soon.append(callback)

    def after_turn(self, callback: Callback) -> None:
        """Call ``callback`` at the end of every turn, after all other callbacks."""
        self._after_turn.append(callback)

    def on_signal(self, signum: signal.Signals, callback: Callback) -> None:
        """Call ``callback`` in the loop for every ``signum`` received; the signal handler itself does nothing."""
        if self._wake is None:
            self._wake = _wakeup_pair()
            self.watch(self._wake[0], functools.partial(self._on_wake, self._wake[0]))
        self._signals[signum] = callback
        before = signal.signal(signum, _ignore)
        self._handlers_before.setdefault(signum, before)

    def run(self) -> None:
        """Run turns until ``stop`` is called."""
        self._running = True
        while self._running:
            self._turn()

    def stop(self) -> None:
        """End ``run`` after this turn."""
        self._running = False

    def close(self) -> None:
        """Restore the signal handlers and close the loop's own descriptors; watched descriptors stay open."""
        for signum, handler in self._handlers_before.items():
            signal.signal(signum, handler)
        self._handlers_before.clear()
        if self._wake is not None:
            signal.set_wakeup_fd(-1)
        self._release()

    def _release(self) -> None:
        self._watches.clear()
        self._channels.clear()
        self._timers.clear()
        self._soon.clear()
        self._after_turn.clear()
        self._signals.clear()
        self._epoll.close()
        for end in self._wake or ():
            end.close()
        self._wake = None

    def _add(self, watch: _Watch) -> None:
        number = _number_of(watch.source)
        self._epoll.register(number, watch.events)
        self._watches[number] = watch

    def _turn(self) -> None:
        self._update_write_interest()
        ready = [(number, self._watches.get(number)) for number, _ in self._wait()]
        for number, watch in ready:
            if watch is not None and self._watches.get(number) is watch:  # another callback may have unwatched it
                watch.on_ready()
        self._fire_timers(time.monotonic())
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        for callback in tuple(self._after_turn):
            callback()

    def _wait(self) -> list[tuple[int, int]]:
        """Return ready descriptors as soon as there are any, or none exactly when the next timer is due.

        epoll waits whole milliseconds; ``select``, which is more precise, waits for the rest if it can.
        """
        timeout = self._time_to_wait()
        if timeout <= 0:
            return self._epoll.poll(0, _AT_ONCE)
        if timeout > _TICK:
            ready = self._epoll.poll(timeout - _TICK, _AT_ONCE)
            if ready:
                return ready
            timeout = self._time_to_wait()
        if self._epoll.fileno() >= _SELECTABLE:
            return self._epoll.poll(timeout, _AT_ONCE)
        select.select((self._epoll,), (), (), timeout)
        return self._epoll.poll(0, _AT_ONCE)

    def _update_write_interest(self) -> None:
        """Watch for writability only the channels with buffered data: a socket is nearly always writable."""
        for number, watch in self._channels.items():
            assert watch.channel is not None
            events = select.EPOLLIN | (select.EPOLLOUT if watch.channel.unsent else 0)
            if events != watch.events:
                watch.events = events
                self._epoll.modify(number, events)

    def _time_to_wait(self) -> float:
        if self._soon or not self._running:
            return 0.0
        while self._timers and not self._timers[0][2].is_pending:  # a canceled timer is no reason to wake up
            heapq.heappop(self._timers)
            self._canceled -= 1
        if not self._timers:
            return _LONGEST_WAIT
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_WAIT)

    def _fire_timers(self, now: float) -> None:
        """Fire the timers due ``now``; overdue timers that these callbacks add fire in the next turn."""
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            timer.fire()

    def _on_cancel(self) -> None:
        """Remove canceled timers once they are most of the heap: a job's timeout may be hours away when it ends."""
        self._canceled += 1
        if self._canceled > max(_FEW_TIMERS, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].is_pending]
            heapq.heapify(self._timers)
            self._canceled = 0

    def _on_wake(self, reader: socket.socket) -> None:
        for signum in reader.recv(4096):
            if signum in self._signals:
                self._signals[signum]()


def _wakeup_pair() -> tuple[socket.socket, socket.socket]:
    """Make Python write the number of every signal it catches to the second socket."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    return reader, writer


def _ignore(signum: int, frame: object) -> None:
    """Do nothing: Python writes the number of each handled signal to the wakeup descriptor."""


def _number_of(source: int | HasFileno) -> int:
    return source if isinstance(source, int) else source.fileno()


class ResettableTimer:
    """Calls back once, at the time set last; at once if that time has passed."""

    def __init__(self, loop: Loop, clock: Callable[[], datetime], callback: Callable[[], None]) -> None:
        """Create a timer that is not set; ``clock`` returns the time of the store."""
        self._loop = loop
        self._clock = clock
        self._callback = callback
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Return whether the timer is set and has not fired."""
        return self._timer is not None and self._timer.is_pending

    def after(self, seconds: float) -> None:
        """Call back after this many seconds."""
        self._set(time.monotonic() + seconds)

    def at(self, moment: datetime, delay: float = 0.0) -> None:
        """Call back ``delay`` seconds after a time of the store's clock, or after now if that has passed."""
        self._set(max(on_loop_clock(moment, self._clock), time.monotonic()) + delay)

    def no_later_than(self, moment: datetime) -> None:
        """Call back at a time of the store's clock, unless the timer is set to an earlier one."""
        deadline = on_loop_clock(moment, self._clock)
        if self._timer is None or not self._timer.is_pending or self._timer.deadline > deadline:
            self._set(deadline)

    def cancel(self) -> None:
        """Do not call back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, deadline: float) -> None:
        self.cancel()
        self._timer = self._loop.at(deadline, self._callback)


def on_loop_clock(moment: datetime, clock: Callable[[], datetime]) -> float:
    """Convert a time of the store's ``clock``, which has whole milliseconds, to the loop's clock."""
    seconds = (moment - clock()).total_seconds() - time.time() % 0.001
    return time.monotonic() + seconds


def every(loop: Loop, seconds: float, callback: Callable[[], None]) -> None:
    """Call back every ``seconds`` as long as the loop runs."""

    def again() -> None:
        loop.at(time.monotonic() + seconds, again)
        callback()

    loop.at(time.monotonic() + seconds, again)
