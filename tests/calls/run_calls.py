"""Run the calls of both scripts, each in a directory of its own, and print what fails as JSON."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import pipelines
import scripts
from inputs import make_inputs


def main(work: str, *url: str) -> None:
    """Run all functions that take nothing or the URL of a bucket; others are theirs to use."""
    inputs, failed = Path(work, "inputs"), {}
    make_inputs(inputs)
    for name, function in {**vars(pipelines), **vars(scripts)}.items():
        if not inspect.isfunction(function) or function.__module__ not in ("pipelines", "scripts"):
            continue
        parameters = [*inspect.signature(function).parameters]
        if parameters not in ([], ["url"]):
            continue
        shutil.copytree(inputs, Path(work, name))
        os.chdir(Path(work, name))
        try:
            function(*url if parameters else ())
        except Exception:  # noqa: BLE001 (reported)
            failed[name] = traceback.format_exc(limit=-8)
    print(json.dumps(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
