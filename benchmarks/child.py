"""One measurement in a process of its own: `python -m benchmarks.child MODULE JOB`.

Law: the parent reads lines of JSON on what was standard output. What libraries print goes to
standard error, so that it is not taken for a figure.
"""

from __future__ import annotations

import importlib
import os
import sys

from benchmarks.job import SIDES, Clock, Job


def main() -> None:
    """Do the job, and tell."""
    module, text = sys.argv[1:]
    job = Job.from_json(text)
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if hasattr(os, "sched_setaffinity"):
        # All libraries take as many threads as there are processors to use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    importlib.import_module(module)
    clock = Clock(stream, job.corpus)
    result = SIDES[job.work][job.side].run(job, clock)
    clock.tell("result", *result)


if __name__ == "__main__":
    main()
