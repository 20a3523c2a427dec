"""Build, pack and verify in a process that has only what macOS has: `elsewhere.py OUT [elsewhere]`.

No /proc, none of Linux's own calls, pages of 16 KiB, and fcntl.F_FULLFSYNC, which some of its file
systems refuse. It prints how often that was called as its last line.
"""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
import sys
from typing import Any

_MISSING = {
    os: "posix_fallocate posix_fadvise fdatasync sched_getaffinity O_TMPFILE memfd_create splice"
    " copy_file_range pidfd_open",
    mmap: "MADV_HUGEPAGE MAP_POPULATE",
}
_FULLFSYNC = -51
synced: list[int] = []


def take_away() -> None:
    """Remove what Linux has."""
    for module, names in _MISSING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    mmap.PAGESIZE = mmap.ALLOCATIONGRANULARITY = 1 << 14  # type: ignore[misc]
    real_open, real_fcntl, real_link = io.open, fcntl.fcntl, os.readlink

    def absent(function: Any) -> Any:
        def call(file: Any, *arguments: Any, **keywords: Any) -> Any:
            if str(file).startswith("/proc"):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))
            return function(file, *arguments, **keywords)

        return call

    def full_sync(descriptor: int, command: int, *arguments: Any) -> Any:
        if command != _FULLFSYNC:
            return real_fcntl(descriptor, command, *arguments)
        synced.append(descriptor)
        if len(synced) % 2:
            raise OSError(errno.ENOTSUP, "a file system that has none")
        return 0

    io.open = sys.modules["builtins"].open = absent(real_open)  # type: ignore[attr-defined]
    os.readlink = absent(real_link)
    fcntl.F_FULLFSYNC, fcntl.fcntl = _FULLFSYNC, full_sync  # type: ignore[misc, attr-defined]


def main() -> None:
    """Make every kind of file that the package makes."""
    if sys.argv[2:]:
        take_away()
    from preprocess import Sampler, build, verify, write_rows
    from preprocess.cli import run as command

    out = sys.argv[1]
    text = os.path.join(os.path.dirname(out), "text.txt")
    build(
        train=[text], out=out, vocab_size=300, val_fraction=0, unit_size=5000, workers=2,
        shuffle_documents=3,
    )
    sampler = Sampler(os.path.join(out, "train.bin"), 3, 8, windows="packed", order="epoch")
    sampler.batch(0)
    write_rows(out, out=os.path.join(out, "rows"), format="jsonl", max_length=16)
    assert all(each.sound for each in verify(out, deep=True))
    command(["doctor", out])  # which prints what it found
    print(len(synced))


if __name__ == "__main__":
    main()
