"""Make the parts of a run on the workers of Ray: part i of N is what task i of N makes.

A part is a run of its own in the output directory, which all machines see, so a worker that dies
loses nothing but the time since its last checkpoint. Counts of a part are kept there until the
tokenizer is trained on the counts of all.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from bpe.files.locations import is_bucket
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.options import (
    BuildSettings,
    EncodeSettings,
    TrainFileSettings,
    TrainSettings,
    resources_of,
)
from preprocess.report import summary
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.run.count_pass import CountedPart, CountPass
from preprocess.run.memory_limit import fit_to_memory
from preprocess.run.merge import Part, check_parts, find_parts
from preprocess.run.plan import Plan
from preprocess.run.run import Run
from preprocess.sources.parts import count_parts, sources_of_task
from preprocess.storage import Files, OutputError, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer
    from preprocess.run.ray import Workers

_COUNTS = "_counts-"  # in names of work directories, between those of the run and the part
_SHARED_FILE = "shared"  # in the work directory; says that a worker sees the outputs

# make_part(run, number of the part, minutes that are left or None) -> its bytes of the sources
MakePart = Callable[["DividedRun", int, float | None], int]


class PartDone(Struct, forbid_unknown_fields=True):
    """Checkpoint: a part of the outputs is finished."""

    number: int
    bytes: int  # of the sources


class DividedRun(Struct, frozen=True, kw_only=True):
    """What a worker needs to make a part of a run; can be pickled."""

    command: str
    settings: BuildSettings | EncodeSettings | TrainFileSettings
    tokenizer: AnyTokenizer | None
    directory: str
    run: str
    stats_file: str
    datasets: Mapping[str, BuildSettings]
    n_parts: int
    at: str  # directory that relative paths begin at
    shared: str  # content of `_SHARED_FILE`; "": outputs are in a bucket

    def plan(self, minutes: float | None, **more: Any) -> Plan:
        """Plan a part as a run of threads of this machine; `more` are settings of it."""
        processors = resources_of(self.settings.ray_resources).get("CPU", 1.0)
        settings = self.settings.replace(
            executor="threads", ray_address=None, ray_resources=(),
            workers=max(int(processors), 1), max_minutes=minutes, **more,
        )  # fmt: skip
        settings = fit_to_memory(settings)
        run, stats_file = self.run, self.stats_file
        if not isinstance(settings, TrainFileSettings):
            run, stats_file = settings.run_name, settings.named("stats.json")
        return Plan(
            self.command, settings, self.tokenizer, self.directory, run, stats_file, "",
            self.datasets,
        )

    @contextmanager
    def here(self) -> Iterator[None]:
        """Make relative paths begin where they do for the run; check that the outputs are seen."""
        with chdir(self.at) if os.path.isdir(self.at) else nullcontext():
            work = open_storage(self.directory, self.run)
            if self.shared and work.get(_SHARED_FILE) != self.shared.encode():
                raise OutputError(
                    f"{Path(self.directory).absolute()}: {os.uname().nodename}, which has a worker"
                    " of Ray, does not see the outputs there; choose a directory on a file system"
                    " that all machines share, or a bucket (--out)"
                )
            yield


def count_part(run: DividedRun, number: int, minutes: float | None) -> CountedPart:
    """Count the pre-tokens of a part of the training text, in a worker."""
    with run.here():
        plan, progress = run.plan(minutes), Progress()
        progress.begin(minutes)
        own = sources_of_task(plan.training_files, number, run.n_parts)
        made_from = structs.replace(
            plan.record, command="count",
            settings=plan.record.settings | {"part": number, "parts": run.n_parts},
        )
        name = f"{run.run}{_COUNTS}{number:05d}-of-{run.n_parts:05d}"
        assert isinstance(plan.settings, TrainSettings)
        # What counted other text is replaced: it is no output.
        with Run(run.directory, name, made_from, True, own_lock=True) as of_part:
            of_part.begin()
            counting = CountPass(own, plan.settings, of_part.journal, progress, is_part=True)
            return CountedPart(counting.run(), counting.at)


class Parts:
    """The parts of a run, made on workers of Ray."""

    def __init__(self, plan: Plan, run: Run, workers: Workers, progress: Progress) -> None:
        self._plan, self._outputs = plan, run
        self._workers, self._progress = workers, progress
        settings, shared = plan.settings, ""
        if not isinstance(settings, TrainFileSettings):
            self._others()  # raises, before hours of counting
        n_parts = getattr(settings, "task_count", None) or count_parts(plan.training_files)
        if not is_bucket(plan.directory):
            shared = uuid.uuid4().hex
            run.storage.put(_SHARED_FILE, shared.encode())
        self._run = DividedRun(
            command=plan.command, settings=settings, tokenizer=plan.tokenizer,
            directory=plan.directory, run=plan.run, stats_file=plan.stats_file,
            datasets=plan.datasets, n_parts=n_parts, at=os.getcwd(), shared=shared,
        )

    def _each(
        self, function: Callable[[DividedRun, int, float | None], Any], run: DividedRun,
        numbers: list[int], stage: Stage,
    ) -> Iterator[tuple[int, Any]]:
        progress = self._progress
        try:
            yield from self._workers.run(
                function, run, numbers, progress, lambda: stage.advance(0)
            )
        except OutOfTimeError as error:
            what = "each part resumes where it stopped"
            raise OutOfTimeError(summary.out_of_time(progress, what)) from error

    def count(self) -> Iterator[CountedPart]:
        """Yield the counts of all parts of the training text, as they are done."""
        run, total = self._run, sum(source.n_bytes for source in self._plan.training_files)
        with self._progress.stage("counting", total, "B") as stage:
            for _, counted in self._each(count_part, run, [*range(run.n_parts)], stage):
                stage.advance(counted.at.bytes)
                yield counted

    def forget_counts(self) -> None:
        """Remove the counts of parts, after the tokenizer is trained."""
        for name in self._outputs.storage.runs():
            if name.startswith(f"{self._run.run}{_COUNTS}"):
                with open_storage(self._run.directory, name, own_lock=True) as storage:
                    storage.clear()

    def make(self, tokenizer: AnyTokenizer, make_part: MakePart) -> list[Part]:
        """Make all parts that are not there by a function of a module, and return all in order."""
        plan, outputs, settings = self._plan, self._outputs, self._plan.settings
        assert not isinstance(settings, TrainFileSettings)
        run, journal = structs.replace(self._run, tokenizer=tokenizer), outputs.journal
        done = {each.number: each.bytes for each in journal.values("parts", PartDone)}
        files, n_parts = outputs.storage.final, run.n_parts
        if not done:
            self._remove_replaced(files)
        total = sum(source.n_bytes for each in plan.passes for source in each.all_files)
        title = f"encoding {' and '.join(plan.names)}"
        left = [number for number in range(n_parts) if number not in done]
        with self._progress.stage(title, total, "B", sum(done.values())) as stage:
            for number, n_bytes in self._each(make_part, run, left, stage):
                stage.advance(n_bytes)
                journal.save("parts", PartDone(number, n_bytes), adds=True, stage=stage)
        return find_parts(files, settings.name, n_parts)

    def _others(self) -> list[str]:
        """Return the files of parts of another number, which are to be removed."""
        settings, files = self._plan.settings, self._outputs.storage.final
        assert not isinstance(settings, TrainFileSettings)
        return check_parts(files, settings.name, settings.task_count or 0, settings.overwrite)

    def _remove_replaced(self, files: Files) -> None:
        """Remove what describes parts that are replaced, and parts of another number."""
        joined, others = list[str](), self._others()
        for name in map(manifest_name, self._plan.names.values()):
            if (content := files.get(name)) is not None:
                manifest = Manifest.from_json(content.decode("utf-8", "replace"), name)
                joined += [] if manifest.own_files(re.sub(r"\.json$", "", name)) else [name]
        if joined or others:
            self._outputs.storage.publish((), (), [*joined, *others])


@contextmanager
def open_parts(plan: Plan, run: Run, progress: Progress) -> Iterator[Parts | None]:
    """Yield the parts of a run on Ray; None: it is run on threads of this machine.

    Raises:
        RayError: Ray is not installed or cannot be reached, or lacks the resources.
    """
    settings = plan.settings
    if settings.executor != "ray":
        yield None
        return
    from preprocess.run.ray import RayError, on_ray

    resources = resources_of(settings.ray_resources)
    with ExitStack() as stack:
        try:
            workers = stack.enter_context(
                on_ray(settings.workers, settings.ray_address, resources, progress)
            )
        except RayError:
            if not run.resumed:  # so that the run can be one of threads
                run.storage.clear()
            raise
        yield Parts(plan, run, workers, progress)
