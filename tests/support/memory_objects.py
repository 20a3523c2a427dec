"""Objects in memory, whose requests are counted, fail, end the process or lose their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import faults
import pytest

from bpe.errors import ChangedError
from preprocess.dataset.manifest import Manifest
from preprocess.storage.remote import ANY, ObjectInfo, ObjectStore, RemoteError


class Bucket:
    """The objects, which outlive processes, and a look at them after each change."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}  # key -> (content, version)
        self.lock = threading.RLock()
        self.check = self._check_manifests
        self._n_versions = 0

    def change(self, key: str, data: bytes | None) -> str:
        """Write or remove an object, and check that manifests belong to complete files."""
        with self.lock:
            self._n_versions += 1
            version = f"v{self._n_versions}"
            if data is None:
                self.objects.pop(key, None)
            else:
                self.objects[key] = data, version
            if ".partial/" not in key:
                self.check()
            return version

    def _check_manifests(self) -> None:
        for key, (content, _) in self.objects.items():
            if key.endswith(("train.json", "val.json")) and ".partial/" not in key:
                name = key.rpartition("/")[2]
                place = key.removesuffix(name)
                manifest = Manifest.from_json(content.decode(), key)
                for file in manifest.files(name.removesuffix(".json")):
                    found = self.objects.get(f"{place}{file.name}")
                    assert found is not None, f"{key} without {file.name}"
                    assert len(found[0]) == file.n_bytes, f"{key}: {file.name} is incomplete"

    def contents(self, prefix: str = "") -> dict[str, bytes]:
        """All objects below a prefix, by the rest of their keys."""
        found = self.objects.items()
        return {key[len(prefix) :]: x for key, (x, _) in found if key.startswith(prefix)}


class MemoryObjects(ObjectStore):
    """An `ObjectStore` of one process.

    Args:
        bucket: The objects.
        at: Number of the request, from 1, at which something happens; 0: never.
        what: "die": the process ends before it; "die after": it is done, and the process ends
            before the answer; "fail": the server is away from then on; "fail after": after it.
        is_repeated: The answer to each request that writes is lost, and it is sent again.
    """

    def __init__(
        self, bucket: Bucket, at: int = 0, what: str = "die", is_repeated: bool = False
    ) -> None:
        self.bucket, self.n_requests = bucket, 0
        self.before: Callable[[str, str], None] = lambda kind, key: None
        self._at, self._what, self._is_repeated = at, what, is_repeated

    def _request(self, kind: str, key: str, do: Callable[[], object] | None = None) -> None:
        """Count a request and do it, or what happens at its number."""
        with self.bucket.lock:
            self.n_requests += 1
            is_over = 0 < self._at <= self.n_requests
            is_after = is_over and self._at == self.n_requests and self._what.endswith("after")
            self.before(kind, key)
            if do is not None and (not is_over or is_after):
                do()
                if self._is_repeated:
                    do()
        if is_over and self._what.startswith("die"):
            raise faults.CutOff
        if is_over:
            raise RemoteError(f"memory://{key}: the request failed: the server is away")

    def info(self, key: str) -> ObjectInfo | None:
        self._request("info", key)
        found = self.bucket.objects.get(key)
        return None if found is None else ObjectInfo(len(found[0]), 0, found[1])

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        self._request("read", key)
        content, found = self.bucket.objects.get(key, (b"", "none"))
        if len(content) < stop or version not in ("", found):
            raise ChangedError(f"{key}: was changed or removed while it was being read")
        return memoryview(content)[start:stop]

    def get(self, key: str) -> bytes | None:
        self._request("get", key)
        return self.bucket.objects.get(key, (None, ""))[0]

    def put(self, key: str, data: bytes | memoryview, version: str | None = ANY) -> str | None:
        answer: str | None = None

        def put() -> None:
            nonlocal answer
            _, found = self.bucket.objects.get(key, (b"", ""))
            answer = None
            if version in (ANY, found):
                answer = self.bucket.change(key, bytes(data))

        self._request("put", key, put)
        return answer

    def copy(self, source: str, target: str) -> None:
        self._request(
            "copy", target, lambda: self.bucket.change(target, self.bucket.objects[source][0])
        )

    def remove(self, key: str) -> None:
        self._request("remove", key, lambda: self.bucket.change(key, None))

    def keys(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        self._request("keys", prefix)
        for key, (content, version) in sorted(self.bucket.objects.items()):
            if key.startswith(prefix):
                yield key, ObjectInfo(len(content), 0, version)


def install(patch: pytest.MonkeyPatch, objects: MemoryObjects) -> MemoryObjects:
    """Let a storage of any bucket have these objects, in a process that begins."""
    for module in ("sources.remote", "sources.find", "storage.files"):
        patch.setattr(f"preprocess.{module}.open_anywhere", lambda root: objects)
    return objects
