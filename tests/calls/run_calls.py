"""Run the calls of a script, each in a directory of its own, and print what fails as JSON."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import sys
import traceback
from pathlib import Path


def main(script: str, inputs: str, work: str, *url: str) -> None:
    """Run all functions that take nothing or the URL of a bucket; others are theirs to use."""
    module = importlib.import_module(script)
    failed = {}
    for name, function in inspect.getmembers(module, inspect.isfunction):
        parameters = [*inspect.signature(function).parameters]
        if function.__module__ != script or parameters not in ([], ["url"]):
            continue
        place = Path(work, name)
        shutil.copytree(inputs, place)
        os.chdir(place)
        try:
            function(*url if parameters else ())
        except Exception:  # noqa: BLE001 (reported)
            failed[name] = traceback.format_exc(limit=-8)
    print(json.dumps(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
