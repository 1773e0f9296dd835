"""Host mode: reads of ordinary files with a deadline, refused at once if they would be late.

Needs libplimsoll_host_c.so and, for forecasts, `plimsoll host` on this machine; without the agent all reads are plain ones. The library is looked
for by $PLIMSOLL_HOST_LIBRARY, by the loader, and in the package's folder.

>>> host = Host()
>>> with open("/var/lib/data", "rb") as f:
...     try:
...         page = host.read(f, 4096, offset=0, deadline=0.02)
...     except Busy as busy:
...         ask_another_replica(busy.wait)
"""

import ctypes
import errno
import mmap
import os
from typing import Protocol


class Busy(OSError):
    """A refusal: the read would be late.

    `wait` in seconds. Of a file: until the data would be here. Of a volume: until the device of the replica that is ready soonest would
    begin; 0 if the device's own time is too long.

    `confidence`, 0 to 1. Of a file: how probable it is that the read would be late. Of a volume: how well the node knows its device, 1 is
    exact; that is no probability. None if the node doesn't say.
    """

    def __init__(self, wait: float, confidence: float | None) -> None:
        reason = f"the wait is about {wait * 1000:.3g} ms" if wait > 0 else "the device takes too long by itself"
        super().__init__(errno.EBUSY, f"it would be late: {reason}")
        self.wait = wait
        self.confidence = confidence


class _File(Protocol):
    def fileno(self) -> int: ...


class _Busy(ctypes.Structure):
    _fields_ = [("wait_us", ctypes.c_uint64), ("confidence", ctypes.c_double)]


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("asked", "busy", "plain", "unfetched")]


_NAME = "libplimsoll_host_c.so"
# The package's folder, which the loader doesn't search.
_PACKAGED = "/usr/lib/plimsoll"


def _load(path: str | None) -> ctypes.CDLL:
    path = path or os.environ.get("PLIMSOLL_HOST_LIBRARY")
    if path:
        return ctypes.CDLL(path)
    try:
        return ctypes.CDLL(_NAME)
    except OSError:
        return ctypes.CDLL(f"{_PACKAGED}/{_NAME}")


def _library(path: str | None) -> ctypes.CDLL:
    lib = _load(path)
    host, size, us = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
    for name, result, arguments in (
        ("open", host, [ctypes.c_char_p, ctypes.c_uint32]),
        ("close", None, [host]),
        ("read", ctypes.c_ssize_t, [host, ctypes.c_int, ctypes.c_void_p, size, us, us, ctypes.POINTER(_Busy)]),
        ("addrcheck", ctypes.c_int, [host, ctypes.c_void_p, size, us, ctypes.POINTER(_Busy)]),
        ("forecast", ctypes.c_int64, [host, ctypes.c_int, size]),
        ("count", None, [host, ctypes.POINTER(_Counts)]),
    ):
        function = getattr(lib, f"plimsoll_host_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


def _us(seconds: float) -> int:
    if seconds < 0:
        raise ValueError("a deadline isn't negative")
    return min(int(seconds * 1e6), 2**63)


class Host:
    """A connection to the agent; one a process is enough. Its methods may be called from any thread."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        refuse_first: bool = False,
        quiet: bool = False,
        library: str | None = None,
    ) -> None:
        self._host: int | None = None
        self._lib = _library(library)
        flags = (1 if refuse_first else 0) | (2 if quiet else 0)
        self._host = self._lib.plimsoll_host_open(os.fsencode(socket) if socket else None, flags)
        if not self._host:
            raise ValueError(f"{socket}: no path of a socket")

    def __del__(self) -> None:
        if self._host:
            self._lib.plimsoll_host_close(self._host)

    def read(self, file: int | _File, length: int, offset: int, deadline: float) -> bytes:
        """Up to `length` bytes at `offset`, as os.pread; raises Busy if that would take longer than `deadline` seconds."""
        fd = file if isinstance(file, int) else file.fileno()
        buffer, busy = ctypes.create_string_buffer(max(length, 1)), _Busy()
        n = self._lib.plimsoll_host_read(self._host, fd, buffer, length, offset, _us(deadline), busy)
        self._check(n, busy)
        return buffer.raw[:n]

    def addrcheck(self, memory: mmap.mmap, offset: int, length: int, deadline: float) -> None:
        """Raises Busy if touching so much of an `mmap.mmap` that is writable would take longer than `deadline` seconds."""
        if offset < 0 or length < 0 or offset + length > len(memory):
            raise ValueError("beyond the mapping")
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        busy = _Busy()
        self._check(self._lib.plimsoll_host_addrcheck(self._host, address + offset, length, _us(deadline), busy), busy)

    def forecast(self, file: int | _File, length: int) -> float | None:
        """Seconds until a read from the file's disk would be done; None: nothing is known."""
        fd = file if isinstance(file, int) else file.fileno()
        us = self._lib.plimsoll_host_forecast(self._host, fd, length)
        if us == -errno.ENODATA:
            return None
        self._check(us, None)
        return us / 1e6

    def counts(self) -> dict[str, int]:
        """Returns the counters, by name."""
        counts = _Counts()
        self._lib.plimsoll_host_count(self._host, counts)
        return {field[0]: getattr(counts, field[0]) for field in _Counts._fields_}

    @staticmethod
    def _check(result: int, busy: _Busy | None) -> None:
        if result == -errno.EBUSY and busy is not None:
            raise Busy(busy.wait_us / 1e6, busy.confidence)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
