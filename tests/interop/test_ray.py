"""Runs on Ray, on two machines that are simulated, give the bytes of tasks one after another."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import ray_cases

from bpe.errors import CorpusError
from preprocess import (
    PipelineConfig,
    RayConfig,
    build,
    merge_parts,
    open_tokens,
    tokenize_and_save,
    verify,
)
from preprocess.dataset.columns import TokenFileError
from preprocess.pipeline import encode
from preprocess.report.progress import OutOfTimeError, Progress
from preprocess.run import count_pass, parts, passes
from preprocess.run.merge import MergeError
from preprocess.run.parts import RayError, Workers, import_ray
from preprocess.storage import JOURNAL_FILE, OutputError

pytest.importorskip("ray", reason="needs Ray")

END, N = "<|endoftext|>", 5


class Machines:
    """A cluster of two machines, of two processors each; this process is on the first one."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # So that a machine that is gone is missed after some seconds.
        checks = {"period_ms": 500, "timeout_ms": 2000, "failure_threshold": 4}
        config = {f"health_check_{name}": n for name, n in checks.items()}
        head = {"num_cpus": 2, "_system_config": config}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second = self._add()
        self.address = self.cluster.address

    def kill(self, node_id: str) -> None:
        """Kill the second machine, if it is that one, and add another."""
        if self.second.node_id == node_id:
            self.cluster.remove_node(self.second, allow_graceful=False)
            self.second = self._add()

    def _add(self) -> Any:
        return self.cluster.add_node(num_cpus=2, resources={"second": 2})


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    ray = import_ray()
    with pytest.MonkeyPatch.context() as patch:
        paths = [processes.environment()["PYTHONPATH"], os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        found = Machines()
        ray.init(address=found.address, log_to_driver=False, configure_logging=False)
        yield found
        ray.shutdown()
        found.cluster.shutdown()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """text/, two files; tokenizer.json of them, without those of validation."""
    root = tmp_path_factory.mktemp("ray")
    (root / "text").mkdir()
    chosen = random.Random(1)
    words = ["the", "low", "lower", "newest", "日本語", "it's", "42", "\n"]
    for name in ("a.txt", "b.txt"):
        documents = (
            " ".join(chosen.choices(words, k=chosen.choice([0, 1, 30, 900]))) for _ in range(90)
        )
        (root / "text" / name).write_text(END.join(documents))
    build(**options_of(root), vocab_size=290, out=root / "threads")
    return root


def options_of(root: Path, **more: Any) -> dict[str, Any]:
    return {"train": root / "text", "val_fraction": 0.2, "unit_size": 3000} | more


def on_ray(root: Path, **more: Any) -> dict[str, Any]:
    """Options of a build on Ray that trains its tokenizer."""
    given = {"vocab_size": 290, "executor": "ray", "workers": 4, "task_count": N}
    return options_of(root, **given | more)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.is_file() and not path.name.endswith("stats.json") and path.name[0] != "."
    }


KINDS: dict[str, dict[str, Any]] = {"one file": {}, "shards": {"shard_tokens": 1700}}


@pytest.fixture(scope="module")
def peace(root: Path) -> dict[str, dict[str, bytes]]:
    """Kind -> the files of tasks that threads run one after another, and merge."""
    found = {}
    for kind, more in KINDS.items():
        for index in reversed(range(N)):
            given = options_of(root, tokenizer=root / "threads" / "tokenizer.json", **more)
            build(**given, out=root / kind, workers=1, task_index=index, task_count=N)
        merge_parts(root / kind)
        found[kind] = contents(root / kind)
    return found


# The same files.


@pytest.mark.parametrize(("kind", "workers"), [("one file", 1), ("shards", 4)])
def test_parts_on_two_machines_are_those_of_tasks(
    machines: Machines, root: Path, tmp_path: Path, peace: Any, kind: str, workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if workers == 1:  # counts are spilled to files when they are added up, too
        monkeypatch.setattr(count_pass, "bytes_for_tables", lambda *_: 3_000)
    out = tmp_path / "out"
    options = on_ray(root, out=out, workers=workers, **KINDS[kind])
    result = build(**options)
    assert contents(out) == peace[kind]
    assert [each["name"] for each in result.stats["stages"]] == [
        "starting Ray", "counting", "merging", "encoding train and val"
    ]
    stats = [json.loads((x / "stats.json").read_text()) for x in (out, root / "threads")]
    for key in ("documents", "bytes", "tokens", "empty_documents", "outputs", "look_alikes"):
        assert stats[0][key] == stats[1][key]
    assert (stats[0]["settings"]["task_count"], len(stats[0]["parts"])) == (N, N)
    assert not [path for path in out.iterdir() if path.name[0] == "."]
    # The number of workers is none of the inputs.
    assert "up to date" in build(**options | {"workers": 3}).lines[0]
    assert all(each.sound for each in verify(out, deep=True))
    for name in ("train.json", "tokenizer.json"):
        (out / name).unlink()
        verify(out, repair=True)
        assert contents(out) == peace[kind]


def test_the_number_of_parts_depends_on_the_text_alone(
    machines: Machines, root: Path, tmp_path: Path
) -> None:
    options = on_ray(root, out=tmp_path, task_count=None)
    assert build(**options).stats["settings"]["task_count"] == 1
    with pytest.raises(TokenFileError, match="task_count was 1 and is 2"):
        build(**options | {"task_count": 2})
    build(**options | {"task_count": 2}, overwrite=True)
    assert not list(tmp_path.glob("*-of-00001*"))
    (tmp_path / "train.json").unlink()
    (tmp_path / "val.json").unlink()
    with pytest.raises(MergeError, match="there are parts of builds with 2 and 3 tasks"):
        build(**options | {"task_count": 3, "tokenizer": tmp_path / "tokenizer.json"})


def test_encode(machines: Machines, root: Path, tmp_path: Path) -> None:
    given = {"paths": root / "text", "tokenizer": root / "threads" / "tokenizer.json"}
    encode(**given, out=tmp_path / "x.bin", executor="ray", task_count=2)
    for index in (0, 1):
        encode(**given, out=tmp_path / "tasks" / "x.bin", task_index=index, task_count=2)
    merge_parts(tmp_path / "tasks", name="x")
    assert contents(tmp_path) == contents(tmp_path / "tasks")
    encode(**given, out=tmp_path / "whole" / "x.bin")
    found, whole = (open_tokens(tmp_path / x) for x in ("x.json", "whole/x.bin"))
    assert np.array_equal(np.asarray(found.tokens), np.asarray(whole.tokens))
    before = contents(tmp_path)
    (tmp_path / "x.json").unlink()
    verify(tmp_path, tokenizer=given["tokenizer"], repair=True)
    assert contents(tmp_path) == before


def test_a_configuration_with_rows(machines: Machines, root: Path, tmp_path: Path) -> None:
    datasets = [
        {"name": name, "data_files": str(root / "text" / f"{name}.txt"), "val_fraction": 0.2}
        for name in "ab"
    ]
    for ray in (None, RayConfig(num_workers=2, resources_per_worker={"CPU": 2})):
        build(PipelineConfig(
            datasets=datasets, tokenizer={"vocab_size": 290}, ray=ray,
            output_path=tmp_path / str(ray is None),
        ))  # fmt: skip
    for name in ("tokenizer.json", "a/train.bin", "b/val.bin"):
        if name == "tokenizer.json":
            files = [(tmp_path / str(x) / name).read_bytes() for x in (True, False)]
            assert files[0] == files[1]
            continue
        streams = [open_tokens(tmp_path / str(x) / name).tokens for x in (True, False)]
        assert np.array_equal(*map(np.asarray, streams))
    given = {"data_files": root / "text", "tokenizer": root / "threads" / "tokenizer.json"}
    given |= {"output_format": "jsonl", "keep_tokens": False, "val_fraction": 0.2}
    for executor in ("threads", "ray"):
        tokenize_and_save(**given, output_path=tmp_path / executor, executor=executor)
    lines = [sorted((tmp_path / x).rglob("*.jsonl")) for x in ("threads", "ray")]
    assert len(lines[0]) == 2
    assert [x.read_bytes() for x in lines[0]] == [x.read_bytes() for x in lines[1]]
    assert not list((tmp_path / "ray" / "tokens").glob("part-*"))


def test_bad_records(machines: Machines, root: Path, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "hello {name}"}}\n{{no record\n' * 3)
    options = {
        "train": tmp_path / "*.jsonl", "val_fraction": 0, "on_bad_record": "skip",
        "tokenizer": root / "threads" / "tokenizer.json",
    }  # fmt: skip
    for executor in ("threads", "ray"):
        more = {"task_count": 3} if executor == "ray" else {}
        build(**options, **more, out=tmp_path / executor, executor=executor)
    rejects = [(tmp_path / x / "rejects.jsonl").read_bytes() for x in ("threads", "ray")]
    assert rejects[0] == rejects[1]
    assert rejects[0].count(b"\n") == 9


# What dies.


def test_killed_workers_change_nothing(
    machines: Machines, root: Path, tmp_path: Path, peace: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(parts, "count_part", ray_cases.dying_count)
    monkeypatch.setattr(passes, "make_part", ray_cases.dying_make)
    build(**on_ray(root, out=tmp_path, workers=2))
    assert contents(tmp_path) == peace["one file"]
    lost = [each.message for each in caplog.records if "another one resumes it" in each.message]
    assert sorted(lost) == [
        f"part {number}: a worker of Ray ended; another one resumes it"
        for number in (0, 0, 0, 1, 1, 1, 1)
    ]


class Watching(Progress):
    """Kills the machine that a worker has named."""

    def __init__(self, machines: Machines, named: Path) -> None:
        super().__init__()
        self._machines, self._named, self.killed = machines, named, ""

    def note_memory(self) -> None:
        if not self.killed and self._named.exists():
            self.killed = self._named.read_text()
            self._machines.kill(self.killed)


def test_a_machine_that_dies_changes_nothing(
    machines: Machines, root: Path, tmp_path: Path, peace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = machines.second.node_id
    monkeypatch.setattr(passes, "make_part", ray_cases.make_where_a_machine_dies)
    # Only the second machine has room for its workers.
    progress = Watching(machines, tmp_path / ".machine")
    build(**on_ray(root, out=tmp_path, ray_resources=["second=1"]), progress=progress)
    assert progress.killed == second
    assert contents(tmp_path) == peace["one file"]


KILLED = """
import os, signal
from preprocess import build
from preprocess.report.progress import Progress

class Dying(Progress):
    def note_memory(self):
        stage = self.stages[-1]
        if stage.name.startswith("encoding") and stage.done > 0:
            os.kill(os.getpid(), signal.SIGKILL)

build({options}, progress=Dying())
"""


def test_a_program_that_is_killed_resumes(
    machines: Machines, root: Path, tmp_path: Path, peace: Any
) -> None:
    out = tmp_path / "out"
    options = on_ray(root, out=out, workers=2)
    texts = {x: str(y) if isinstance(y, Path) else y for x, y in options.items()}
    texts |= {"ray_address": machines.address}
    given = ", ".join(f"{x}={y!r}" for x, y in texts.items())
    killed = KILLED.replace("{options}", given)
    processes.run("-c", killed, cwd=tmp_path, expected_exit=-signal.SIGKILL)
    progress = Progress()
    build(**options, progress=progress)
    stages = {each.name: each for each in progress.stages}
    assert stages["counting"].done_before > 0
    assert stages["encoding train and val"].done_before > 0
    assert contents(out) == peace["one file"]


def test_the_time_limit(machines: Machines, root: Path, tmp_path: Path, peace: Any) -> None:
    options = on_ray(root, out=tmp_path)
    with pytest.raises(OutOfTimeError, match=r"time limit reached \(.*each part resumes where it"):
        build(**options, max_minutes=1e-9)
    build(**options)
    assert contents(tmp_path) == peace["one file"]


# What is refused.


def test_errors_of_text_are_those_of_threads(
    machines: Machines, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(b"some words " * 1000 + b"\xff" + b" more" * 1000)
    given = {"train": tmp_path / "text", "unit_size": 2000, "val_fraction": 0}
    messages = []
    for tokenizer in ({"vocab_size": 300}, {"tokenizer": root / "threads" / "tokenizer.json"}):
        for executor in ("threads", "ray"):
            out = tmp_path / f"{executor}{len(messages)}"
            with pytest.raises(CorpusError) as caught:
                build(**given, **tokenizer, executor=executor, out=out)
            messages.append(str(caught.value))
    assert len({*messages}) == 1
    (tmp_path / "text").write_bytes(b"some words " * 1000)
    build(**given, vocab_size=300, executor="ray", out=tmp_path / "ray1")


def test_a_machine_that_does_not_see_the_outputs(
    machines: Machines, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    work = tmp_path / "there" / "out" / ".build.partial"
    work.mkdir(parents=True)
    (work / JOURNAL_FILE).write_bytes(b"{}")  # of another run, on a disk of its own
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(parts.os, "getcwd", lambda: str(tmp_path / "there"))
    with pytest.raises(OutputError, match="does not see the outputs there; choose a directory on"):
        build(**on_ray(root, out="out"))


def squares(given: str, resources: dict[str, float] | None = None) -> list[int]:
    workers = Workers(import_ray(), 2, resources or {})
    found = workers.run(ray_cases.square, given, range(9), Progress())
    return sorted(result for _, result in found)


def test_functions_that_fail(machines: Machines) -> None:
    assert squares("") == [i**2 for i in range(9)]
    with pytest.raises(CorpusError, match="part 3: cannot be squared"):
        squares("fails")
    with pytest.raises(RayError, match=r"part 3: a worker of Ray failed: (.|\n)*Strange"):
        squares("strange")
    with pytest.raises(RayError, match="part 3: 4 workers of Ray ended before it was done, the"):
        squares("ends")
    with pytest.raises(RayError, match="each worker needs GPU=7, and the machines of the Ray clu"):
        squares("", {"GPU": 7.0})


def test_a_worker_that_lacks_the_program(machines: Machines) -> None:
    def local(given: Any, number: int, minutes: float | None) -> int:
        return number

    class Absent:
        def __reduce__(self) -> Any:
            return __import__, ("module_of_another_version",)

    workers = Workers(import_ray(), 2, {})
    with pytest.raises(RayError, match=r"a worker of Ray failed: (.|\n)*module_of_another_v"):
        list(workers.run(local, Absent(), range(3), Progress()))
