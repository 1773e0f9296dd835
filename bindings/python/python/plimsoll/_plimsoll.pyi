from collections.abc import Sequence
from typing import Literal, TypedDict, final, type_check_only

from typing_extensions import disjoint_base

__all__ = ["Bytes", "Completions", "OpenError", "ReadError", "ReadTimeout", "Started", "Volume", "WriteError"]

class OpenError(Exception):
    """A volume can't be opened."""

class ReadError(Exception):
    """No replica answered."""

class ReadTimeout(TimeoutError):
    """The read's limit came."""

class WriteError(Exception):
    """Not all replicas have the change."""

@final
class Bytes:
    """Data of a read that nobody has copied yet."""

    def bytes(self) -> bytes:
        """As bytes."""
    def into_buffer(self, buffer: memoryview) -> int:
        """Copied into a buffer of the same length."""

@final
class Completions:
    """The calls of one event loop."""

    def __new__(cls) -> Completions: ...
    def fileno(self) -> int:
        """The descriptor that is readable when a call has ended."""
    def take(self) -> list[tuple[int, Bytes | None, Exception | None]]:
        """Takes all that have ended: (number, data or None, error or None)."""

@final
class Started:
    """A call under way."""

    def cancel(self) -> None:
        """Withdraws it, where it is a read."""

@type_check_only
class Counts(TypedDict):
    """Counters since a volume was opened."""

    gets: int
    failed: int
    tries: int
    busy: int
    errors: int
    cancels: int
    probes: int

@type_check_only
class Replica(TypedDict):
    """State of a replica; `why` is empty unless it is down or behind."""

    address: str
    state: Literal["opening", "down", "behind", "up"]
    why: str
    generation: int

@disjoint_base
class Volume:
    def __new__(
        cls,
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
    ) -> Volume: ...
    @property
    def size(self) -> int:
        """Its size in bytes."""
    def read(
        self,
        offset: int,
        length: int,
        deadline: float | None = None,
        limit: float | None = None,
        *,
        refusable: bool = False,
    ) -> bytes:
        """Reads `length` bytes at `offset`; `deadline` and `limit` in seconds."""
    def readinto(
        self,
        offset: int,
        buffer: memoryview,
        deadline: float | None = None,
        limit: float | None = None,
        *,
        refusable: bool = False,
    ) -> int:
        """Fills a buffer of bytes from `offset` on."""
    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Writes a buffer's bytes at `offset` on all replicas."""
    def trim(self, offset: int, length: int) -> None:
        """Gives up a range's content on all replicas."""
    def flush(self) -> None:
        """Makes everything durable that was written before."""
    def _start_read(
        self,
        to: Completions,
        number: int,
        offset: int,
        length: int,
        deadline: float | None,
        limit: float | None,
        refusable: bool,
    ) -> Started: ...
    def _start_write(self, to: Completions, number: int, offset: int, data: bytes | memoryview) -> None: ...
    def _start_trim(self, to: Completions, number: int, offset: int, length: int) -> None: ...
    def _start_flush(self, to: Completions, number: int) -> None: ...
    def counts(self) -> Counts:
        """Counts since it was opened."""
    def replicas(self) -> list[Replica]:
        """States of its replicas."""
    def close(self) -> None:
        """Closes it, and waits until its writer has ended in order.

        Reads of other threads that have begun go on to their end, and the connections close after the last of them. A change that is
        under way ends, too; those that wait for it fail. Calls of event loops end: reads with ValueError, changes with their outcome. In
        a child that was forked it does nothing.
        """
