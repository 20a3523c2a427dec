"""How many threads there are; one that has done its work may be about to end."""

import _thread
import time


def count() -> int:
    return _thread._count()


def wait_for(n: int, least: int = 0) -> None:
    """Wait until there are `least` to `n` threads besides the main one."""
    until = time.monotonic() + 60
    while not least <= count() <= n:
        assert time.monotonic() < until
