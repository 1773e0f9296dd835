"""Reads with a deadline of a volume that several Plimsoll nodes have."""

import asyncio
import functools

from ._plimsoll import OpenError, ReadError, ReadTimeout
from ._plimsoll import Volume as _Volume

__all__ = ["OpenError", "ReadError", "ReadTimeout", "Volume"]


class Volume(_Volume):
    """A volume over its replicas, given as NBD addresses in the order of the data's placement.

    Keywords: policy ("mitt+wait"; all are in docs/client.md), deadline, limit, stall and connect in seconds,
    object_bytes (a set of objects: `replicas` is then a list of groups, each a list of addresses; object `i` is in group
    `i % len(replicas)` and read at `i * object_bytes`), monotonic (no read gives older data than one that ended before it began), foreign (the servers aren't Plimsoll's).
    """

    async def read_async(self, offset, length, deadline=None, limit=None):
        """`read` for asyncio: other tasks go on meanwhile."""
        call = functools.partial(self.read, offset, length, deadline=deadline, limit=limit)
        return await asyncio.get_running_loop().run_in_executor(None, call)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
