"""What the scripts in this folder share: each reads a dataset as its consumer does.

A script runs in an environment that has the consumer, and not tokenmill;
`tests/clients/NAME.txt` is what is installed there. It is given a path and options as JSON, and
prints what the consumer read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def answer(read: Callable[..., dict[str, Any]]) -> None:
    """Print as JSON, on a line of its own, what `read` returns for the arguments of the script."""
    print("\n" + json.dumps(read(Path(sys.argv[1]), **json.loads(sys.argv[2]))))
