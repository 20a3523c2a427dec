"""Finished files in a bucket: objects below a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpe.errors import ChangedError
from bpe.files.locations import join_location, shown_url
from preprocess.storage.errors import OutputError, writing
from preprocess.storage.remote import RemoteError, open_objects, split_url
from preprocess.storage.spool import Spool

READ_AT_ONCE = 16 << 20  # bytes


@contextmanager
def translated(kept: str = "") -> Iterator[None]:
    """Convert errors of the server inside the `with` to OutputError."""
    try:
        yield
    except (RemoteError, ChangedError) as error:
        raise OutputError(f"{error}{'; ' * bool(kept)}{kept}") from error


class ObjectFiles:
    """Complete files below the URL of a place in a bucket: its objects."""

    def __init__(self, location: str) -> None:
        root, key = split_url(location)
        self.objects = open_objects(root)
        self.prefix = f"{key.strip('/')}/" if key.strip("/") else ""
        self.spool = Spool()
        self._shown = shown_url(location).rstrip("/")

    def key(self, name: str) -> str:
        """Return the key of the object of a complete file."""
        return f"{self.prefix}{name}"

    def names(self) -> list[str]:
        return sorted(self.sizes())

    def size(self, name: str) -> int | None:
        with translated():
            info = self.objects.info(self.key(name))
        return None if info is None else info.n_bytes

    def sizes(self) -> dict[str, int]:
        with translated():
            found = [(key[len(self.prefix) :], x) for key, x in self.objects.keys(self.prefix)]
        return {name: info.n_bytes for name, info in found if "/" not in name}

    def get(self, name: str) -> bytes | None:
        with translated():
            return self.objects.get(self.key(name))

    def read(self, name: str, start: int, stop: int) -> bytes:
        stop = min(stop, self.size(name) or 0)
        with translated():
            return bytes(self.objects.read(self.key(name), start, stop)) if start < stop else b""

    def where(self, name: str = "") -> str:
        return join_location(self._shown, name) if name else self._shown

    def path(self, name: str = "") -> Path:
        """As `Files.path`; the siblings of NAME.json are the files NAME_....json."""
        if not name:
            return self.spool.directory
        if name.endswith(".json"):
            stem = name.removesuffix(".json")
            for other in self.names():
                if other.startswith(f"{stem}_") and other.endswith(".json"):
                    self._copy(other)
        return self._copy(name)

    def _copy(self, name: str) -> Path:
        """Copy a file to the spool, and return its path there."""
        path = self.spool.path(name)
        self.spool.remove(name)
        if (size := self.size(name)) is not None:
            with writing(path), open(path, "wb") as file:
                for start in range(0, size, READ_AT_ONCE):
                    file.write(self.read(name, start, start + READ_AT_ONCE))
        return path
