"""Builds on actors of Ray give the files of threads, also when actors or the program are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import faults
import pytest
from ray_cases import Squares, Unit

from bpe.errors import CorpusError
from preprocess import PipelineConfig, RayConfig, build
from preprocess.pipeline import train
from preprocess.report.progress import OutOfTimeError, Progress
from preprocess.run import count_pass, journal, ray_cluster
from preprocess.run.ray import RayExecutor, on_ray
from preprocess.run.ray_actors import Actors
from preprocess.run.ray_cluster import RayError, connected
from preprocess.run.units import WorkerLostError

pytest.importorskip("ray", reason="needs Ray")

ROOT = Path(__file__).parents[2]
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One session for all tests: starting Ray takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        with connected(4, None) as found:
            yield found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """text/, two files; tokenizer.json of them."""
    root = tmp_path_factory.mktemp("ray")
    (root / "text").mkdir()
    chosen = random.Random(1)
    words = ["the", "low", "lower", "newest", "日本語", "it's", "42", "\n"]
    for name in ("a.txt", "b.txt"):
        documents = (
            " ".join(chosen.choices(words, k=chosen.choice([0, 1, 30, 900]))) for _ in range(90)
        )
        (root / "text" / name).write_text(END.join(documents))
    train(paths=root / "text", out=root / "tokenizer.json", vocab_size=300)
    return root


def options_of(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "train": root / "text", "vocab_size": 300, "val_fraction": 0.2, "unit_size": 3000,
    } | more  # fmt: skip


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if not path.name.endswith("stats.json")
    }


@pytest.fixture(scope="module")
def peace(root: Path) -> dict[str, dict[str, bytes]]:
    """Kind -> the files that threads write."""
    found = {}
    for kind, more in KINDS.items():
        build(**options_of(root, **more), out=root / kind, workers=2)
        found[kind] = contents(root / kind)
    return found


KINDS: dict[str, dict[str, Any]] = {
    "one file": {},
    "shards": {"shard_tokens": 3000},
    "split": {"shard_tokens": 1700, "split_documents": True, "val_fraction": 0},
}


# The same files.


@pytest.mark.parametrize(
    ("kind", "workers"), [("split", 1), ("shards", 2), ("one file", 4), ("shards", 4)]
)
def test_any_number_of_workers_gives_the_files_of_threads(
    ray: Any, root: Path, tmp_path: Path, peace: Any, kind: str, workers: int
) -> None:
    options = options_of(root, **KINDS[kind], out=tmp_path / "out", executor="ray")
    result = build(**options, workers=workers)
    assert contents(tmp_path / "out") == peace[kind]
    assert [each["name"] for each in result.stats["stages"]][:2] == ["starting Ray", "counting"]


def test_counts_are_spilled_with_a_memory_limit(
    ray: Any, root: Path, tmp_path: Path, peace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_pass, "bytes_for_tables", lambda *_: 3_000_000)
    build(**options_of(root, out=tmp_path / "out", executor="ray", workers=2))
    assert contents(tmp_path / "out") == peace["one file"]


def test_a_configuration(ray: Any, root: Path, tmp_path: Path, peace: Any) -> None:
    config = PipelineConfig(
        datasets=[{"name": "x", "data_files": str(root / "text"), "val_fraction": 0.2}],
        tokenizer={"vocab_size": 300}, output_path=tmp_path,
        ray=RayConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    )  # fmt: skip
    assert {each.executor for each in config.builds.values()} == {"ray"}
    assert config.training is not None
    assert (config.training.executor, config.training.workers) == ("ray", 2)
    build(config)
    assert peace["one file"]["train.bin"] == (tmp_path / "x" / "train.bin").read_bytes()


def test_errors_of_text_are_those_of_threads(ray: Any, root: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"some words " * 1000 + b"\xff" + b" more" * 1000)
    given = {"train": tmp_path / "text", "vocab_size": 300, "unit_size": 2000, "workers": 2}
    messages = []
    for executor in ("threads", "ray"):
        with pytest.raises(CorpusError) as caught:
            build(**given, executor=executor, out=tmp_path / executor)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_workers_of_one_actor_or_of_several(
    ray: Any, root: Path, tmp_path: Path, peace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for together in (1, 3):
        monkeypatch.setattr(ray_cluster, "_MOST_TOGETHER", together)
        for kind in ("shards", "split", "one file"):
            out = tmp_path / f"{kind}{together}"
            build(**options_of(root, **KINDS[kind], out=out, executor="ray", workers=4))
            assert contents(out) == peace[kind]


# Workers that die.


def processes(actors: Actors) -> list[int]:
    """Return the numbers of the processes of actors."""
    import ray

    return list(ray.get([each.started for each in actors]))


class Killing(Progress):
    """Kills a worker in a stage, each time that so many units of it are done."""

    def __init__(self, started: list[Actors], stage: str, units: list[int]) -> None:
        super().__init__()
        self._pools, self._stage, self._units, self._n = started, stage, units, 0
        self.killed = 0

    def note_memory(self) -> None:
        if self.stages[-1].name == self._stage and self.stages[-1].done:
            self._n += 1
            if self._n in self._units:
                numbers = processes(self._pools[-1])
                os.kill(numbers[self.killed % len(numbers)], signal.SIGKILL)
                self.killed += 1


@pytest.mark.parametrize(
    ("kind", "stage", "together"),
    [
        ("one file", "counting", 1),
        ("one file", "encoding train and val", 2),
        ("shards", "encoding train and val", 1),
        ("shards", "encoding train and val", 2),
    ],
)
def test_killed_workers_change_nothing(
    ray: Any, root: Path, tmp_path: Path, peace: Any, monkeypatch: pytest.MonkeyPatch, kind: str,
    stage: str, together: int,
) -> None:
    monkeypatch.setattr(ray_cluster, "_MOST_TOGETHER", together)
    started: list[Actors] = []
    start = Actors.start

    def noted(self: Actors) -> None:
        started.append(self)
        start(self)

    monkeypatch.setattr(Actors, "start", noted)
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.05)
    progress = Killing(started, stage, [4, 30])
    options = options_of(root, **KINDS[kind], out=tmp_path / "out", executor="ray", workers=2)
    build(**options, progress=progress)
    assert progress.killed == 2
    assert contents(tmp_path / "out") == peace[kind]


def squares(executor: RayExecutor, work: Squares, n: int = 20) -> list[int]:
    with closing(executor([Unit(i) for i in range(n)], work, 2)) as results:
        return list(results)


@pytest.fixture(scope="module")
def executor(ray: Any) -> Iterator[RayExecutor]:
    """Two workers, each in an actor of its own."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray_cluster, "_MOST_TOGETHER", 1)
            found = stack.enter_context(on_ray(2, None, {}, Progress()))
        yield found


def test_units_of_a_worker_that_ends_are_done_again(
    executor: RayExecutor, tmp_path: Path
) -> None:
    work = Squares(ends=7, once=str(tmp_path / "ended"))
    assert squares(executor, work) == [i**2 for i in range(20)]
    assert (tmp_path / "ended").exists()


def test_what_workers_keep_is_added_up(executor: RayExecutor) -> None:
    for n in (1, 5, 20):
        assert len(squares(executor, Squares(keeps=True), n)) == n
        assert executor.collect() == sum(range(n))
        assert executor.collect() == 0


def test_what_a_worker_had_kept_is_lost_with_it(executor: RayExecutor) -> None:
    with pytest.raises(WorkerLostError, match="a worker of Ray ended:"):
        squares(executor, Squares(ends=7, keeps=True))
    while executor.actors.starting():  # so that each keeps something
        executor._look([])
    squares(executor, Squares(keeps=True))
    os.kill(processes(executor.actors)[1], signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="a worker of Ray ended:"):
        executor.collect()
    squares(executor, Squares(keeps=True))
    assert executor.collect() == sum(range(20))


def test_a_unit_that_ends_every_worker_ends_the_run(executor: RayExecutor) -> None:
    found = []
    with pytest.raises(RayError, match="workers of Ray ended, or what they had made was lost, 4 t"):
        found += squares(executor, Squares(ends=7))
    executor.actors.note_result()
    assert squares(executor, Squares(), 3) == [0, 1, 4]


def test_errors_of_work_come_in_order_and_unchanged(executor: RayExecutor) -> None:
    results = executor((Unit(i) for i in range(20)), Squares(fails=7), 2)
    assert [next(results) for _ in range(7)] == [i**2 for i in range(7)]
    with pytest.raises(CorpusError, match="unit 7: cannot be squared"):
        next(results)
    with pytest.raises(RayError, match=r"a worker of Ray failed: (.|\n)*strange 1 2"):
        squares(executor, Squares(fails=2, once="strange"))
    with pytest.raises(ValueError, match="no work"):
        squares(executor, Squares(raises=ValueError("no work")))

    def failing() -> Iterator[Unit]:
        yield from map(Unit, range(5))
        raise CorpusError("no more units")

    results = executor(failing(), Squares(), 2)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    with pytest.raises(CorpusError, match="no more units"):
        next(results)


def test_workers_end_with_the_executor(ray: Any) -> None:
    with on_ray(2, None, {}, Progress()) as found:
        numbers = processes(found.actors)
        results = found(map(Unit, range(1000)), Squares(), 2)
        assert next(results) == 0
        results.close()
    assert len(numbers) == 1  # with two threads
    for number in numbers:
        assert ended(number)


def ended(number: int) -> bool:
    """Wait until a process has ended."""
    for _ in range(1000):
        try:
            os.kill(number, 0)
            if Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        subprocess.run(["sleep", "0.01"], check=True)
    return False


def test_resources_that_no_machine_has(ray: Any) -> None:
    with (
        pytest.raises(RayError, match="each worker needs GPU=7, and the machines of the Ray clu"),
        on_ray(2, None, {"GPU": 7.0}, Progress()),
    ):
        pass


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("shards", "ray", "threads"), ("split", "threads", "ray"), ("split", "ray", "ray")],
)
def test_a_run_goes_on_with_another_executor(
    ray: Any, root: Path, tmp_path: Path, peace: Any, monkeypatch: pytest.MonkeyPatch, kind: str,
    before: str, after: str,
) -> None:
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    options = options_of(root, **KINDS[kind], out=tmp_path / "out", workers=2)
    options |= {"tokenizer": root / kind / "tokenizer.json"}
    names = "train and val" if kind == "shards" else "train"
    with pytest.raises(faults.CutOff):
        build(**options, executor=before, progress=faults.Stopping(f"encoding {names}", 40))
    progress = Progress()
    build(**options, executor=after, progress=progress)
    assert progress.stages[-1].done_before > 0
    assert contents(tmp_path / "out") == peace[kind]


def test_the_time_limit_of_a_run_with_shards(
    ray: Any, root: Path, tmp_path: Path, peace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    options = options_of(root, **KINDS["shards"], out=tmp_path / "out", executor="ray", workers=2)
    options |= {"tokenizer": root / "shards" / "tokenizer.json"}

    class Limited(Progress):
        def out_of_time(self) -> bool:
            return self.stages[-1].done > 0.8 * self.stages[-1].total

    with pytest.raises(OutOfTimeError, match="time limit reached"):
        build(**options, progress=Limited())
    progress = Progress()
    build(**options, progress=progress)
    assert progress.stages[-1].done_before > 0
    assert contents(tmp_path / "out") == peace["shards"]


# The program is killed.


KILLED = """
import os, signal, sys
from preprocess import build
from preprocess.report.progress import Progress
from preprocess.run import journal

journal.SECONDS_BETWEEN_COMMITS = 0.0

class Dying(Progress):
    def note_memory(self):
        stage = self.stages[-1]
        if stage.name.startswith("encoding") and stage.done > 0.6 * stage.total:
            os.kill(os.getpid(), signal.SIGKILL)

build({options}, progress=Dying())
"""


def test_a_program_that_is_killed_resumes(
    ray: Any, root: Path, tmp_path: Path, peace: Any
) -> None:
    kind = "shards"
    options = options_of(root, **KINDS[kind], out=tmp_path / "out", executor="ray", workers=2)
    texts = {x: str(y) if isinstance(y, Path) else y for x, y in options.items()}
    given = ", ".join(f"{x}={y!r}" for x, y in texts.items())
    done = subprocess.run(
        [sys.executable, "-c", KILLED.replace("{options}", given)], cwd=ROOT, check=False,
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    progress = Progress()
    build(**options, progress=progress)
    stages = {each.name: each for each in progress.stages}
    assert stages["encoding train and val"].done_before > 0
    assert contents(tmp_path / "out") == peace[kind]
