"""How work is shared among actors of Ray, and what is done if they fail; without Ray itself."""

from __future__ import annotations

import itertools
import logging
import pickle
import random
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import fake_ray
import numpy as np
import pytest
from ray_cases import Squares, Unit

from bpe.errors import ChangedError
from preprocess import build
from preprocess.pipeline import train
from preprocess.report.progress import OutOfTimeError, Progress
from preprocess.run import ray_actors, ray_shards
from preprocess.run.ray import Kept, RayExecutor
from preprocess.run.ray_cluster import RayError, actor_sizes
from preprocess.run.ray_shard_writer import Part, ShardFile, append_to_shard
from preprocess.run.ray_worker import Worker
from preprocess.run.units import WorkerLostError
from preprocess.storage import DamagedStateError, LocalStorage


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = fake_ray.fake_ray()
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


def started(ray: Any, workers: int) -> RayExecutor:
    executor = RayExecutor(ray, workers, {})
    executor.actors.start()
    return executor


# Which actor does what.


@pytest.mark.parametrize(
    ("cpus", "workers", "sizes"),
    [
        ((4,), 2, [2]), ((1, 1), 2, [1, 1]), ((3, 20), 16, [3, 8, 5]), ((20,), 16, [8, 8]),
        ((2, 2), 6, [2, 2, 1, 1]), ((0, 1), 1, [1]),
    ],
)  # fmt: skip
def test_workers_of_a_machine_share_actors(
    cpus: tuple[int, ...], workers: int, sizes: list[int]
) -> None:
    ray = fake_ray.fake_ray(cpus)
    executor = started(ray, workers)
    assert [each.n_workers for each in executor.actors] == sizes
    with closing(executor(map(Unit, range(200)), Squares(), workers)) as results:
        assert list(results) == [i**2 for i in range(200)]
    assert all(actor.done.count("run") for actor in ray.actors)
    assert {each.n_tasks for each in executor.actors} == {0}


def test_an_actor_that_is_starting_is_waited_for_before_it_is_ended(ray: Any) -> None:
    executor = started(ray, 2)
    lost, other = executor.actors
    lost.handle.is_dead = other.handle.is_dead = True
    executor.actors.replace_dead()
    starting, pending = executor.actors
    pending.handle.is_pending = True
    executor.close()
    assert starting.handle.done == ["process"]
    assert starting.handle.is_dead
    assert pending.handle.is_dead


def test_what_an_idle_actor_had_kept_is_missed_when_it_is_collected(ray: Any) -> None:
    executor = started(ray, 2)
    with closing(executor(map(Unit, range(20)), Squares(keeps=True), 2)) as results:
        assert len(list(results)) == 20
    assert executor.collect() == sum(range(20))
    with closing(executor(map(Unit, range(20)), Squares(keeps=True), 2)) as results:
        assert len(list(results)) == 20
    next(iter(executor.actors)).handle.is_dead = True
    executor.actors.replace_dead()
    with pytest.raises(WorkerLostError, match="ended before what it kept was collected"):
        executor.collect()


def test_actors_that_die_together_are_one_loss(ray: Any) -> None:
    executor = started(fake_ray.fake_ray((1,) * 9), 9)
    for _ in range(2):  # some of them while they start
        first, *others = executor.actors
        for each in (first, *others[:5]):
            each.handle.is_dead = True
        executor.actors.note_loss(first, fake_ray.RayActorError("killed"))
    assert executor.actors._n_losses == 2
    assert not any(each.handle.is_dead for each in executor.actors)


def test_it_is_said_that_no_worker_has_room(
    ray: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executor = started(ray, 2)
    monkeypatch.setattr(ray_actors, "_SECONDS_BETWEEN_LINES", 0.0)
    for each in executor.actors:
        each.handle.is_dead = True
    executor.actors.replace_dead()
    with caplog.at_level(logging.INFO):
        assert executor.actors.ready()
    assert "of 2 workers of Ray have started, each of which needs CPU=1" in caplog.text


def test_a_shard_whose_writers_die_again_and_again_ends_the_run(
    ray: Any, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    append, n = ray_shards.append_to_shard, 0

    def dying(worker: Worker, file: ShardFile, attempt: int, n_before: int, *more: Any) -> Any:
        nonlocal n
        if n_before == 3:
            n += 1
            raise fake_ray.OutOfMemoryError("killed for memory")
        return append(worker, file, attempt, n_before, *more)

    monkeypatch.setattr(ray_shards, "append_to_shard", dying)
    with pytest.raises(RayError, match="4 times in a row, the last time so: killed for memory;"):
        build(**options | {"shard_tokens": 9000}, out=tmp_path / "out", executor="ray")
    assert n == 4


def test_sizes_of_actors_by_other_resources() -> None:
    nodes = [
        {"Alive": False, "Resources": {"CPU": 9.0}}, {"Alive": True, "Resources": {"CPU": 9.0}},
        {"Alive": True, "Resources": {"CPU": 9.0, "GPU": 1.0}},
    ]  # fmt: skip
    assert actor_sizes(nodes, 3, {"CPU": 1.0, "GPU": 0.5}) == [2, 1]
    assert actor_sizes(nodes, 3, {"CPU": 4.0, "GPU": 0.0}) == [2, 1]
    assert actor_sizes(nodes, 3, {"CPU": 0.0}) == [3]
    # GPUs above 1 must be whole numbers.
    node = {"Alive": True, "Resources": {"CPU": 9.0, "GPU": 3.0}}
    assert actor_sizes([node], 3, {"CPU": 1.0, "GPU": 0.5}) == [2, 1]
    assert actor_sizes([node], 5, {"CPU": 1.0, "GPU": 0.3}) == [3, 2]
    assert actor_sizes([node], 2, {"CPU": 1.0, "GPU": 1.0}) == [2]


def test_workers_that_no_machine_has_room_for_together() -> None:
    """As if a machine were gone, and others used the rest."""
    ray = fake_ray.fake_ray((1, 3))
    executor = started(ray, 4)
    first, lost = executor.actors
    lost.handle.is_dead = True
    executor.actors.replace_dead()
    _, waiting = executor.actors
    waiting.handle.is_pending = True
    # Nothing waits for it, but it is not given up at once.
    assert executor.actors.ready() == [first]
    executor.actors.replace_dead()
    executor._look([])
    assert list(executor.actors) == [first, waiting]
    waiting.since -= 200
    executor._look([])
    assert [each.n_workers for each in executor.actors] == [1, 1, 1, 1]
    assert waiting.handle.is_dead


def test_an_actor_that_has_started_is_kept_however_late_that_is_seen() -> None:
    executor = started(fake_ray.fake_ray((2,)), 2)
    (lost,) = executor.actors
    lost.handle.is_dead = True
    executor.actors.replace_dead()
    (late,) = executor.actors
    late.since -= 1000
    executor._look([])
    assert list(executor.actors) == [late]
    assert late.is_ready


def test_units_of_earlier_work_are_not_done(ray: Any) -> None:
    worker = Worker(1)
    of = [np.frombuffer(pickle.dumps(Squares()), np.uint8) for _ in range(2)]
    assert worker.run(2, of[0], [Unit(3)])[0] == [9]
    (failed,) = worker.run(1, of[1], [Unit(3)])[0]
    assert str(failed.error) == "units of earlier work came late; nobody takes the results"
    worker.run_apart(2, np.frombuffer(pickle.dumps(Pairs()), np.uint8), [], 7)
    worker.run(3, of[1], [])
    with pytest.raises(KeyError):
        worker.kept(7, 1, None)


# What is lost.


def test_as_many_units_are_done_at_a_time_as_there_are_workers() -> None:
    worker, together = Worker(2), threading.Barrier(2)
    of = np.frombuffer(pickle.dumps(Squares()), np.uint8)
    worker.run(1, of, [])
    running, most = 0, 0

    def work(unit: Unit) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        together.wait(60)  # until two are here
        running -= 1
        together.wait(60)
        return unit.number

    worker._works = work  # type: ignore[assignment]
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(worker.run, 1, of, [Unit(i), Unit(i)]) for i in range(4)]
        assert [each.result()[0] for each in found] == [[i, i] for i in range(4)]
    assert most == 2


@pytest.mark.parametrize(
    "kind", [fake_ray.ObjectLostError, fake_ray.RayActorError, fake_ray.OutOfMemoryError]
)
def test_objects_that_are_lost_again_and_again_end_the_run(ray: Any, kind: Any) -> None:
    executor = started(ray, 2)
    before = list(executor.actors)

    def losing(worker: Worker) -> None:
        raise kind("the object is gone")

    lane = executor.lane()
    for _ in range(3):
        assert executor.result_of(executor.write(lane, None, losing)) is None
    with pytest.raises(RayError, match="what they had made was lost, 4 times in a row, the last"):
        executor.result_of(executor.write(lane, None, losing))
    assert list(executor.actors) == before
    executor.actors._n_losses = 0

    def lost(reference: Any) -> Any:
        found = fake_ray.get(reference)
        if isinstance(found, tuple):
            raise fake_ray.ObjectLostError("the object is gone")
        return found

    ray.get = lost
    with pytest.raises(RayError, match="row, the last time so: the object is gone; if memory is"):
        list(executor(map(Unit, range(9)), Squares(), 2))
    assert list(executor.actors) == before


def test_only_an_actor_that_died_is_replaced(ray: Any) -> None:
    executor = started(ray, 2)
    lane = executor.lane()
    calls = [executor.write(lane, None, tell, 5) for _ in range(2)]
    assert executor.done_of(calls) == set()
    lane.actor.handle.is_dead = True
    assert executor.done_of(calls) == {each.reference for each in calls}
    assert executor.result_of(calls[0]) is None
    assert lane.actor not in executor.actors
    assert (executor.actors._n_losses, len(list(executor.actors))) == (1, 2)
    # It is not counted again.
    assert executor.result_of(calls[1]) is None
    assert executor.actors._n_losses == 1
    assert executor.result_of(executor.write(executor.lane(), None, tell, 5)) == (5,)


def tell(worker: Worker, value: int) -> int:
    return value


class Pairs:
    """Makes work whose results are pairs."""

    def __call__(self) -> Any:
        return lambda unit: (unit.number, unit.number**2)


class Changing:
    """Makes work that fails."""

    def __call__(self) -> Any:
        def work(unit: Any) -> Any:
            raise ChangedError(f"{unit.where}: has changed")

        return work


def test_a_unit_that_fails_when_it_is_made_again(ray: Any, tmp_path: Path) -> None:
    executor = started(ray, 1)
    results = executor.run_tasks(map(Unit, range(3)), Changing(), is_apart=True)
    with pytest.raises(ChangedError, match="unit 0: has changed"), closing(results):
        next(results)
    kept = executor.make_again(Kept(ray.put([Unit(5)]), 1))
    part = Part(None, kept.key, [(0, 0, 1, 0, 0)], 1, 1)
    with LocalStorage(tmp_path, "x") as storage:
        values = ShardFile(storage, "a", 300, False), 0, 0, [part], True
        call = executor.write(executor.lane(), None, append_to_shard, *values)
        with pytest.raises(ChangedError, match="unit 5: has changed"):
            executor.result_of(call)


def test_what_is_kept_is_forgotten_after_its_last_part() -> None:
    of = np.frombuffer(pickle.dumps(Pairs()), np.uint8)
    for order in itertools.permutations([(1, None), (2, None), (3, 3)]):
        worker = Worker(1)
        worker.run_apart(1, of, [Unit(3)], 7)
        for part, n_parts in order:
            assert worker.kept(7, part, n_parts) == [9]
            if part == 2:
                worker.forget(7, part, n_parts)  # it counts once
        assert not worker._kept
        worker.forget(7, 1, None)
        with pytest.raises(KeyError):
            worker.kept(7, 1, None)
        worker.run_apart(0, of, [Unit(3)], 8)
        assert not worker._kept  # of earlier work


def test_ids_that_come_out_of_order(tmp_path: Path) -> None:
    worker = Worker(1)
    with LocalStorage(tmp_path, "x") as storage:
        file = ShardFile(storage, "a", 300, False)
        assert append_to_shard(worker, file, 0, 0, [], False) is None
        for late in ((0, 0), (0, 2), (1, 1)):
            message = rf"a: ids came out of order: .* \(0, 1\), found {re.escape(str(late))};"
            with pytest.raises(RayError, match=message):
                append_to_shard(worker, file, *late, [], False)
        shard = append_to_shard(worker, file, 2, 0, [], True)
        assert shard is not None
        assert shard.n_tokens == 0
        assert not worker.opened
        # A call of an attempt that was given up leaves the files of the finished shard alone.
        storage.path("a.bin").write_bytes(b"is there")
        with pytest.raises(RayError, match=r"expected \(attempt, call\) None, found \(0, 1\)"):
            append_to_shard(worker, file, 0, 1, [], False)
        assert storage.path("a.bin").read_bytes() == b"is there"


# Whole builds.


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    chosen = np.random.default_rng(1)
    words = ["the", "low", "lower", "newest", "it's", "42", "\n"]
    documents = [" ".join(chosen.choice(words, chosen.integers(1, 90))) for _ in range(200)]
    (tmp_path / "text").write_text("<|endoftext|>".join(documents))
    train(paths=tmp_path / "text", out=tmp_path / "t.json", vocab_size=300)
    return {
        "train": tmp_path / "text", "tokenizer": tmp_path / "t.json", "val_fraction": 0.2,
        "unit_size": 500, "shard_tokens": 400, "workers": 2,
    }


def contents(directory: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in directory.iterdir() if x.name != "stats.json"}


@pytest.mark.parametrize("cpus", [(1, 1), (2,), (1, 1, 1, 1), (2, 3)])
@pytest.mark.parametrize("more", [{}, {"split_documents": True, "val_fraction": 0}])
def test_builds_of_which_actors_die(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    cpus: tuple[int, ...], more: dict[str, Any],
) -> None:
    """Whether an actor writes, or keeps what others write, or both."""
    ray = fake_ray.fake_ray(cpus)
    monkeypatch.setitem(sys.modules, "ray", ray)
    options |= {"workers": sum(cpus), "shard_tokens": 3000, **more}
    build(**options, out=tmp_path / "threads")
    peace = contents(tmp_path / "threads")
    build(**options, out=tmp_path / "whole", executor="ray")
    assert contents(tmp_path / "whole") == peace
    for seed in range(12):
        out, before = tmp_path / f"out{seed}", len(ray.actors)
        build(**options, out=out, executor="ray", progress=Killing(ray, seed))
        assert contents(out) == peace
        left = [actor for actor in ray.actors[before:] if not actor.is_killed]
        assert left
        for actor in left:
            while actor.queues["give"]:
                actor.step("give")
            assert not actor.made._kept


class Killing(Progress):
    """Kills up to three actors, by chance."""

    def __init__(self, ray: Any, seed: int) -> None:
        super().__init__()
        self._ray, self._random, self._n = ray, random.Random(seed), 0

    def note_memory(self) -> None:
        is_encoding = self.stages[-1].name.startswith("encoding")
        living = [actor for actor in self._ray.actors if actor.done and not actor.is_dead]
        if is_encoding and living and self._n < 3 and self._random.random() < 0.05:
            for actor in self._random.sample(living, min(len(living), self._random.choice([1, 4]))):
                actor.is_dead = actor.is_killed = True
            self._n += 1


@pytest.mark.parametrize(
    ("n", "more"),
    [(400, {}), (20_000, {}), (100, {"split_documents": True, "val_fraction": 0}), (400, None)],
)
def test_what_actors_keep_is_bounded(
    ray: Any, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, n: int,
    more: dict[str, Any] | None,
) -> None:
    if more is None:  # one document
        options["train"] = tmp_path / "long"
        options["val_fraction"] = 0
        options["train"].write_text((tmp_path / "text").read_text().replace("<|endoftext|>", " "))
    run, most = Worker.run_apart, 0

    def noted(self: Worker, *values: Any) -> Any:
        nonlocal most
        found = run(self, *values)
        most = max(most, sum(len(actor.made._kept) for actor in ray.actors))
        return found

    monkeypatch.setattr(Worker, "run_apart", noted)
    build(**options | {"shard_tokens": n} | (more or {}), out=tmp_path / "out", executor="ray")
    # Tasks whose results are fetched, tasks of shards, and one that ends inside a document.
    assert 2 < most <= (3 + 2) * 2 + 1


class Short(Progress):
    """Has time for a part of the text in each run."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__()
        self._n_bytes = n_bytes

    def out_of_time(self) -> bool:
        stage = self.stages[-1]
        return stage.done - stage.done_before >= self._n_bytes


def test_short_runs_advance_though_shards_are_written_late(
    ray: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    build(**options, out=tmp_path / "threads")
    before = []
    while len(before) < 40:
        progress = Short(5_000)
        try:
            build(**options, out=tmp_path / "out", executor="ray", progress=progress)
            break
        except OutOfTimeError as error:
            assert "encoding resumes from there" in str(error)
        before.append(progress.stages[-1].done_before)
    assert before == sorted(set(before))
    assert len(before) > 3
    assert contents(tmp_path / "out") == contents(tmp_path / "threads")


def test_a_run_that_finishes_no_shard_says_so(
    ray: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    options |= {"out": tmp_path / "out", "executor": "ray", "shard_tokens": 8_000}
    for _ in range(2):
        with pytest.raises(OutOfTimeError, match="this run has finished no shard, and progress is"):
            build(**options, progress=Short(1))


def test_a_file_that_is_cut_off_after_it_was_written(
    ray: Any, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an actor that was believed dead, and is not."""
    flush = ray_shards.ShardsOnRay.flush

    def cutting(self: ray_shards.ShardsOnRay) -> None:
        flush(self)
        storage: Any = self._files.storage
        name = next(x for x in sorted(storage.names()) if "00001" in x and x.endswith(".docs"))
        path = storage.path(name)
        path.write_bytes(path.read_bytes()[:8])

    monkeypatch.setattr(ray_shards.ShardsOnRay, "flush", cutting)
    message = r"00001.*\.docs: expected \d+ bytes, as a worker of Ray wrote, found 8; another"
    with pytest.raises(DamagedStateError, match=message):
        build(**options, out=tmp_path / "out", executor="ray")
