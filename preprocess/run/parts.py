"""Make the parts of a run on workers of Ray: part i of N is what task i of N makes.

A part is a run of its own in the output directory, which all machines see, so a worker that dies
loses nothing but the time since its last checkpoint. Counts of a part are kept there until the
tokenizer is trained on the counts of all.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs

from bpe.errors import TokenmillError
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.locations import is_bucket
from preprocess.options import BuildSettings, TrainFileSettings, TrainSettings, resources_of
from preprocess.report import summary
from preprocess.report.progress import OutOfTimeError, Progress, logger
from preprocess.run.count_pass import CountedPart, CountPass
from preprocess.run.memory_limit import fit_to_memory
from preprocess.run.merge import Part, check_parts, find_parts
from preprocess.run.plan import Plan
from preprocess.run.run import Run
from preprocess.sources.parts import count_parts, sources_of_task
from preprocess.storage import JOURNAL_FILE, LockedError, OutputError, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_MOST_LOSSES = 3  # of workers that have the same part
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_END = 10.0  # of workers that are told to
_SECONDS_OF_LOCK = 60.0  # until a worker that was lost has given its lock back
_BEGIN_BYTES = 28  # of a journal: the check of its first entry, the inputs
_COUNTS = "_counts-"  # in names of work directories, between those of the run and the part

Given = TypeVar("Given")
Result = TypeVar("Result")
# function(given, number of the part, minutes that are left or None)
PartFunction = Callable[[Given, int, float | None], Result]


class RayError(TokenmillError):
    """Ray is not installed or cannot be reached, or its workers keep dying."""


# --- in a worker ---


class DividedRun(Struct, frozen=True):
    """What a worker needs to make a part of a run; can be pickled."""

    settings: Any
    datasets: Mapping[str, BuildSettings]
    tokenizer: AnyTokenizer | None
    directory: str  # of the outputs, or its URL
    run_name: str
    n_parts: int
    at: str  # directory that relative paths begin at
    journal: bytes  # how that of the run begins; b"": outputs are in a bucket

    def plan(self, minutes: float | None, **more: Any) -> Plan:
        """Plan a part as a run of threads of this machine; `more` are settings of it."""
        processors = resources_of(self.settings.ray_resources).get("CPU", 1.0)
        settings = fit_to_memory(self.settings.replace(
            executor="threads", ray_address=None, ray_resources=(),
            workers=max(int(processors), 1), max_minutes=minutes, **more,
        ))  # fmt: skip
        return Plan(settings, self.tokenizer, self.datasets, has_tokenizer_file=False)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Make relative paths begin where they do for the run; check that the outputs are seen."""
        with chdir(self.at) if os.path.isdir(self.at) else nullcontext():
            work = open_storage(self.directory, self.run_name)
            # That of another run may be at the same place on a disk of the worker.
            if self.journal and work.read(JOURNAL_FILE, 0, _BEGIN_BYTES) != self.journal:
                raise OutputError(
                    f"{Path(self.directory).absolute()}: {os.uname().nodename}, which has a worker"
                    " of Ray, does not see the outputs there; choose a directory on a file system"
                    " that all machines share, or a bucket (--out)"
                )
            yield


def count_part(run: DividedRun, number: int, minutes: float | None) -> CountedPart:
    """Count the pre-tokens of a part of the training text."""
    with run.here():
        plan, progress = run.plan(minutes), Progress()
        progress.begin(minutes)
        own = sources_of_task(plan.training_files, number, run.n_parts)
        of_part = {"part": number, "parts": run.n_parts}
        settings = plan.record.settings | of_part
        made_from = structs.replace(plan.record, command="count", settings=settings)
        name = f"{run.run_name}{_COUNTS}{number:05d}-of-{run.n_parts:05d}"
        assert isinstance(plan.settings, TrainSettings)
        # What counted other text is replaced: it is no output.
        with Run(run.directory, name, made_from, True, own_lock=True) as counted:
            counted.begin()
            counting = CountPass(own, plan.settings, counted.journal, progress, is_part=True)
            return CountedPart(counting.run(), counting.at)


def call(
    function: PartFunction[Given, Result], given: Given, part: int, minutes: float | None
) -> Result:
    """Call the function of a part, once the lock of a worker that died is free."""
    until = time.monotonic() + _SECONDS_OF_LOCK
    while True:
        try:
            return function(given, part, minutes)
        except LockedError:
            # The machine may not know yet that an earlier worker with this part is dead.
            if time.monotonic() >= until:
                raise
            time.sleep(_SECONDS_BETWEEN_LOOKS)


# --- workers ---


class Workers:
    """Workers of Ray that call functions, each for one part of a run at a time.

    Each needs `resources`, by name; CPU: 1 if not given. Raises RayError if the cluster lacks one.
    """

    def __init__(self, ray: Any, workers: int, resources: Mapping[str, float]) -> None:
        self._ray, self._workers = ray, workers
        needs, there = {"CPU": 1.0} | dict(resources), ray.cluster_resources()
        for name, amount in needs.items():
            if there.get(name, 0.0) < amount:
                raise RayError(
                    f"each worker needs {name}={amount:g}, and the machines of the Ray cluster have"
                    f" {there.get(name, 0.0):g} in all; ask for less (--ray-resource)"
                )
        self._call = ray.remote(
            num_cpus=needs.pop("CPU"), num_gpus=needs.pop("GPU", 0), resources=needs,
            memory=needs.pop("memory", None), max_retries=0,
        )(call)

    def run(
        self, function: PartFunction[Given, Result], given: Given, parts: Iterable[int],
        progress: Progress,
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number of a part, result of the function) of each part, as they are done.

        A part whose worker dies, also with its machine, is given to another worker; if its workers
        keep dying, this raises RayError. Exceptions of the function, which is one of a module, are
        raised unchanged; that of the time limit when no part is under way.
        """
        left, under_way, n_lost = deque(parts), dict[Any, int](), dict[int, int]()
        shared, late = self._ray.put(given), None
        try:
            while under_way or (left and late is None):
                while left and late is None and len(under_way) < self._workers:
                    part, minutes = left.popleft(), progress.minutes_left()
                    under_way[self._call.remote(function, shared, part, minutes)] = part
                for stage in progress.stages[-1:]:
                    stage.advance(0)
                done, _ = self._ray.wait([*under_way], timeout=_SECONDS_BETWEEN_LOOKS)
                for called in done:
                    part = under_way.pop(called)
                    try:
                        result = self._ray.get(called)
                    except self._ray.exceptions.RayError as error:
                        late = self._failed(error, part, n_lost) or late
                        left.extendleft([part])
                    else:
                        yield part, result
            if late is not None:
                what = "each part resumes where it stopped"
                raise OutOfTimeError(summary.out_of_time(progress, what)) from late
        finally:  # no worker may write any more
            for called in under_way:
                self._ray.cancel(called, force=True)
            if under_way:
                n = len(under_way)
                self._ray.wait([*under_way], num_returns=n, timeout=_SECONDS_TO_END)

    def _failed(self, error: Any, part: int, n_lost: dict[int, int]) -> OutOfTimeError | None:
        """Return the error of a part at the time limit; None: its worker is lost; raise others."""
        errors = self._ray.exceptions
        cause = getattr(error, "cause", None)
        if isinstance(cause, OutOfTimeError):
            return cause
        if isinstance(cause, TokenmillError):
            raise cause from None
        if not isinstance(error, (
            errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError,
            errors.ObjectLostError, errors.LocalRayletDiedError,
        )):  # fmt: skip
            raise RayError(
                f"part {part:,}: a worker of Ray failed: {error}; all machines need the same"
                " version of tokenmill"
            ) from error
        n_lost[part] = n_lost.get(part, 0) + 1
        if n_lost[part] > _MOST_LOSSES:
            raise RayError(
                f"part {part:,}: {n_lost[part]} workers of Ray ended before it was done, the"
                f" last one so: {' '.join(str(error).split())[:500]}; if memory is short, give"
                " workers more of it (--ray-resource memory=4000000000); rerun the same command to"
                " resume"
            ) from error
        logger.warning("part %s: a worker of Ray ended; another one resumes it", f"{part:,}")
        return None


def import_ray() -> Any:
    """Import Ray, without usage statistics; raise RayError if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # A worker without GPUs still sees them, as a later version of Ray does, which else warns.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise RayError(
            "--executor ray needs Ray, which is not installed; install it: pip install"
            " 'tokenmill[ray]', or leave --executor out"
        ) from error
    return ray


@contextmanager
def connected(cpus: int, address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start Ray on this machine, inside the `with`; yield the module.

    A connection that the program has already is used, and stays. Raises RayError if there is none.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    quiet = logging.getLogger("ray")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    options |= {"address": address or "local"}
    if address is None:
        options |= {"num_cpus": cpus, "include_dashboard": False}
    # Ray sets handlers of its own.
    handlers = {x: signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises plain ones, too
            where = "started on this machine" if address is None else f"reached at {address}"
            raise RayError(
                f"Ray cannot be {where}: {' '.join(str(error).split())}; start a cluster (ray"
                " start --head), and give its address (--ray-address)"
            ) from error
        finally:
            with suppress(ValueError):  # not the main thread, where Ray sets none
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        yield ray
    finally:
        ray.shutdown()
        quiet.setLevel(level)


# --- the parts of a run ---


class Parts:
    """The parts of a run, made on workers of Ray."""

    def __init__(self, plan: Plan, run: Run, workers: Workers, progress: Progress) -> None:
        self._plan, self._run, self._workers, self._progress = plan, run, workers, progress
        settings = plan.settings
        if not isinstance(settings, TrainFileSettings):
            self._others()  # raises, before hours of counting
        n_parts = getattr(settings, "task_count", None) or count_parts(plan.training_files)
        is_local = not is_bucket(plan.directory)
        begin = run.storage.read(JOURNAL_FILE, 0, _BEGIN_BYTES) if is_local else b""
        self._divided = DividedRun(
            settings, plan.datasets, plan.tokenizer, plan.directory, plan.run_name, n_parts,
            os.getcwd(), begin,
        )

    def count(self) -> Iterator[CountedPart]:
        """Yield the counts of all parts of the training text, as they are done."""
        divided, progress = self._divided, self._progress
        total, numbers = sum(x.n_bytes for x in self._plan.training_files), range(divided.n_parts)
        with progress.stage("counting", total, "B") as stage:
            for _, counted in self._workers.run(count_part, divided, numbers, progress):
                stage.advance(counted.at.bytes)
                yield counted

    def forget_counts(self) -> None:
        """Remove the counts of parts, after the tokenizer is trained."""
        for name in self._run.storage.runs():
            if name.startswith(f"{self._plan.run_name}{_COUNTS}"):
                with open_storage(self._plan.directory, name, own_lock=True) as storage:
                    storage.clear()

    def make(
        self, tokenizer: AnyTokenizer, make_part: PartFunction[DividedRun, int]
    ) -> list[Part]:
        """Make all parts that are not there, and return all in order.

        `make_part` is a function of a module, which returns the bytes of the sources of a part.
        """
        plan, journal, settings = self._plan, self._run.journal, self._plan.settings
        assert not isinstance(settings, TrainFileSettings)
        divided = structs.replace(self._divided, tokenizer=tokenizer)
        done = dict(journal.values("parts", tuple[int, int]))  # number -> bytes of its sources
        if not done:
            self._remove_replaced()
        total = sum(source.n_bytes for each in plan.passes for source in each.all_files)
        title = f"encoding {' and '.join(plan.names)}"
        left = [number for number in range(divided.n_parts) if number not in done]
        with self._progress.stage(title, total, "B", sum(done.values())) as stage:
            for number, n_bytes in self._workers.run(make_part, divided, left, self._progress):
                journal.save("parts", (number, n_bytes), adds=True, stage=stage)
                stage.advance(n_bytes)
        return find_parts(self._run.storage.final, settings.name, divided.n_parts)

    def _others(self) -> list[str]:
        """Return the files of parts of another number, which are to be removed."""
        settings, files = self._plan.settings, self._run.storage.final
        assert not isinstance(settings, TrainFileSettings)
        return check_parts(files, settings.name, settings.task_count or 0, settings.overwrite)

    def _remove_replaced(self) -> None:
        """Remove what describes parts that are replaced, and parts of another number."""
        joined, others, files = list[str](), self._others(), self._run.storage.final
        for name in map(manifest_name, self._plan.names.values()):
            if (content := files.get(name)) is not None:
                manifest = Manifest.from_json(content.decode("utf-8", "replace"), name)
                joined += [] if manifest.own_files(re.sub(r"\.json$", "", name)) else [name]
        if joined or others:
            self._run.storage.publish((), (), [*joined, *others])


@contextmanager
def open_parts(plan: Plan, run: Run, progress: Progress) -> Iterator[Parts | None]:
    """Yield the parts of a run on Ray; None: it is run on threads of this machine."""
    settings, n = plan.settings, plan.settings.workers
    if settings.executor != "ray":
        yield None
        return
    resources = resources_of(settings.ray_resources)
    cpus = -(-n * max(resources.get("CPU", 1.0), 1.0) // 1)
    with ExitStack() as stack:
        try:
            with progress.stage("starting Ray", n, "workers") as stage:
                ray = stack.enter_context(connected(int(cpus), settings.ray_address))
                workers = Workers(ray, n, resources)
                stage.advance(n)
        except RayError:
            if not run.resumed:  # so that the run can be one of threads
                run.storage.clear()
            raise
        yield Parts(plan, run, workers, progress)
