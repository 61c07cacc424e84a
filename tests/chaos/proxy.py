"""A TCP proxy between a client and its server, through which connections can be cut, stalled, slowed and changed."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

CHUNK = 65536


class Proxy:
    """Listens on a port of its own, for as long as it lives, and passes on to the port that ``target`` names."""

    def __init__(self, target: Callable[[], int], answers: Callable[[bytes], bytes] = bytes) -> None:
        """``answers`` returns what the client gets of what the server sends."""
        self._target = target
        self._answers = answers
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._delay = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._loop.call_soon_threadsafe(self._loop.add_reader, self._listening, self._accept)

    def cut(self) -> None:
        """End all connections, and all that come, at once."""
        self._do(self._cut())

    def stall(self) -> None:
        """Accept everything and pass nothing on, in either direction."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def slow(self, seconds: float) -> None:
        """Hold everything back for so long."""
        self._delay = seconds

    def heal(self) -> None:
        """Pass on as ever; what was held back comes first."""
        self._is_cut = False
        self._delay = 0.0
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        """End everything."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def _accept(self) -> None:
        """Accept a connection at once: a server of asyncio takes turns for that, and may be closed in between."""
        with suppress(OSError):
            accepted, _ = self._listening.accept()
            self._keep(self._connecting, self._connect(accepted))

    async def _connect(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        self._writers.add(writer)
        try:
            onward = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            self._abort({writer})
            return
        both = {writer, onward[1]}
        self._writers |= both
        if self._is_cut:  # perhaps only since it has begun to connect
            self._abort(both)
            return
        for source, sink, change in ((reader, onward[1], bytes), (onward[0], writer, self._answers)):
            self._keep(self._pumps, self._pump(source, sink, both, change))

    def _keep(self, tasks: set[asyncio.Task[None]], what: Coroutine[Any, Any, None]) -> None:
        """Start a task, and have the end wait for it."""
        task = self._loop.create_task(what)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        both: set[asyncio.StreamWriter],
        change: Callable[[bytes], bytes],
    ) -> None:
        """Pass on until one side has gone; then neither has anybody to talk to."""
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                await asyncio.sleep(self._delay)
                await self._flows.wait()
                sink.write(change(chunk))
                await sink.drain()
        self._abort(both)

    def _abort(self, writers: set[asyncio.StreamWriter]) -> None:
        for writer in tuple(writers):
            writer.transport.abort()
        self._writers -= writers

    async def _cut(self) -> None:
        self._is_cut = True
        self._abort(set(self._writers))

    async def _close(self) -> None:
        await self._cut()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        while self._connecting:
            await asyncio.wait(self._connecting)
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
