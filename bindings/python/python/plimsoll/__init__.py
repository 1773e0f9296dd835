"""Reads with a deadline, and writes, of volumes that several Plimsoll nodes have."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._plimsoll import Completions, OpenError, ReadError, ReadTimeout, Started, WriteError
from ._plimsoll import Volume as _Volume
from .host import Busy

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Busy", "OpenError", "ReadError", "ReadTimeout", "Volume", "WriteError"]


def _octets(buffer: Buffer) -> memoryview:
    """A view of any contiguous buffer as bytes: nothing is copied."""
    return memoryview(buffer).cast("B")


class _Loop:
    """Calls of one event loop under way. The loop watches a descriptor while there are any; no thread waits for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._completions = Completions()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def _take(self) -> None:
        for number, data, error in self._completions.take():
            future = self._waiting.get(number)  # none: its caller was cancelled
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(data)
            else:
                future.set_exception(error)

    async def call(self, start: Callable[[Completions, int], Started | None]) -> Any:
        """Awaits the call that `start` begins. If its caller is cancelled, a call that can be withdrawn is withdrawn."""
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        started = start(self._completions, number)
        if not self._waiting:
            loop.add_reader(self._completions.fileno(), self._take)
        future = self._waiting[number] = loop.create_future()
        try:
            return await future
        finally:
            del self._waiting[number]
            if not self._waiting:
                loop.remove_reader(self._completions.fileno())
            if started is not None:
                started.cancel()  # nothing, if it has ended


class Volume(_Volume):
    """A volume over its replicas, given as NBD addresses in the order of the data's placement.

    Keywords: policy ("mitt+wait"; all are in docs/design/client.md), deadline, limit, stall and connect in seconds,
    object_bytes (a set of objects: `replicas` is then a list of groups, each a list of addresses; object `i` is in group
    `i % len(replicas)` and read at `i * object_bytes`), monotonic (no read gives older data than one that ended before it
    began), foreign (the servers aren't Plimsoll's), writable (connects as the volume's only writer to all replicas).

    A read that a replica refuses goes on to the next. If all refuse, it waits at the one that is ready soonest; a read with
    `refusable=True` raises Busy instead.

    A volume belongs to the process that opened it. In a child that was forked its calls raise ValueError, and closing or dropping it
    does nothing: open another one there.
    """

    def __init__(
        self,
        replicas: Sequence[str] | Sequence[Sequence[str]],
        *,
        policy: str = "mitt+wait",
        deadline: float = 0.02,
        limit: float = 30.0,
        stall: float = 5.0,
        connect: float = 5.0,
        monotonic: bool = True,
        foreign: bool = False,
        object_bytes: int | None = None,
        writable: bool = False,
    ) -> None:
        # The arguments were __new__'s; they are named here for type checkers and editors.
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()

    def _call(self, start: Callable[[Completions, int], Started | None]) -> Any:
        loop = asyncio.get_running_loop()
        calls = self._loops.get(loop)
        if calls is None:
            calls = self._loops[loop] = _Loop(loop)
        return calls.call(start)

    def readinto(
        self,
        offset: int,
        buffer: Buffer,
        deadline: float | None = None,
        limit: float | None = None,
        *,
        refusable: bool = False,
    ) -> int:
        """Fills a writable buffer from `offset` on; returns its length in bytes."""
        return super().readinto(offset, _octets(buffer), deadline, limit, refusable=refusable)

    def write(self, offset: int, data: Buffer) -> None:
        """Writes a buffer's bytes at `offset`: all replicas have them when it returns. bytes aren't copied on their way."""
        super().write(offset, data if isinstance(data, bytes) else _octets(data))

    async def read_async(
        self,
        offset: int,
        length: int,
        deadline: float | None = None,
        limit: float | None = None,
        *,
        refusable: bool = False,
    ) -> bytes:
        """`read` for asyncio. Cancelling it withdraws the read."""
        read = lambda to, number: self._start_read(to, number, offset, length, deadline, limit, refusable)  # noqa: E731
        return (await self._call(read)).bytes()

    async def readinto_async(
        self,
        offset: int,
        buffer: Buffer,
        deadline: float | None = None,
        limit: float | None = None,
        *,
        refusable: bool = False,
    ) -> int:
        """`readinto` for asyncio. The buffer is filled at the end, on the event loop's thread."""
        into = _octets(buffer)
        if into.readonly:
            raise ValueError("the buffer is read only")
        read = lambda to, number: self._start_read(to, number, offset, len(into), deadline, limit, refusable)  # noqa: E731
        return (await self._call(read)).into_buffer(into)

    async def write_async(self, offset: int, data: Buffer) -> None:
        """`write` for asyncio. A write whose caller is cancelled goes on to its end."""
        source = data if isinstance(data, bytes) else _octets(data)
        await self._call(lambda to, number: self._start_write(to, number, offset, source))

    async def trim_async(self, offset: int, length: int) -> None:
        """`trim` for asyncio."""
        await self._call(lambda to, number: self._start_trim(to, number, offset, length))

    async def flush_async(self) -> None:
        """`flush` for asyncio."""
        await self._call(self._start_flush)

    async def close_async(self) -> None:
        """`close` for asyncio, on a thread of the loop's executor: the loop goes on while nodes are waited for."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Volume:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()

    def __enter__(self) -> Volume:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
