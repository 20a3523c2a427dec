"""A file has its old content or its new one, whatever fails meanwhile."""

from __future__ import annotations

import errno
from pathlib import Path

import faults
import pytest

from bpe.files.atomic_write import write_atomically


@pytest.mark.parametrize("durable", [True, False])
def test_each_call_that_fails_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path, old, new = tmp_path / "file", b"old", b"new" * 200_000
    counting = faults.System()
    faults.install(counting, monkeypatch)
    write_atomically(path, new, durable=durable)
    assert path.read_bytes() == new
    assert ("fsync" in counting.calls) == durable
    for at in range(1, len(counting.calls) + 1):
        path.write_bytes(old)
        faults.install(faults.System(at, faults.fail(errno.ENOSPC)), monkeypatch)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, new, durable=durable)
        assert list(tmp_path.iterdir()) == [path]
        is_new = at > counting.calls.index("replace") + 1
        assert path.read_bytes() == (new if is_new else old)
