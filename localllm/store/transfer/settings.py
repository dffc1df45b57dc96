"""The figures that a transfer goes by."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Settings:
    """Times are in seconds."""

    connections: int = 4
    connect_s: float = 15
    stall_s: float = 30  # a connection that brings no byte for so long is made anew
    slowest_bytes_per_s: float = 100  # and one that brings fewer than this, too
    tries: int = 8  # failures in a row with no progress between them
    grave_tries: int = 3  # of a kind that waiting seldom mends
    first_wait_s: float = 0.5  # doubles with each failure
    longest_wait_s: float = 30
    longest_asked_s: float = 600  # what a server may ask for with Retry-After
    chunk_bytes: int | None = None  # bytes under one hash of the journal; None: by the size
    span_bytes: int = 64 * MIB  # the most that is asked for at once
    keep_s: float = 5  # how often what has come of unfinished chunks is written
    beat_s: float = 2  # how often the holder of a lease shows that it lives
    stale_s: float = 30  # a lease that shows nothing for so long is taken over
    poll_s: float = 0.1  # how often progress is reported, and a lease looked at

    def chunk_for(self, size: int) -> int:
        """Bytes of a chunk: about 4096 chunks a file, each of 1 to 8 MiB."""
        if self.chunk_bytes is not None:
            return self.chunk_bytes
        chunk = MIB
        while chunk < 8 * MIB and size > 4096 * chunk:
            chunk *= 2
        return chunk


DEFAULT = Settings()
