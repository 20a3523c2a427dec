"""A small corpus, and runs of it that are cut off."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import faults
import pytest
import torture

from preprocess import build

END = "<|endoftext|>"
DOCUMENTS = [f"document {i} of many, and some more words: {i * i}" for i in range(60)]
contents = torture.contents


def cut_off(
    options: dict[str, Any], stage: str = "encoding train and val", units: int = 3, **more: Any
) -> None:
    with pytest.raises(faults.CutOff):
        build(**options | more, progress=faults.Stopping(stage, units))


def assert_goes_on(options: dict[str, Any], root: Path, stages: Iterable[str]) -> None:
    """A build that is cut off in each of its stages ends in the bytes of `root/whole`."""
    build(**options, out=root / "whole")
    for stage in stages:
        cut_off(options | {"out": root / "resumed"}, stage, 4)
    build(**options, out=root / "resumed")
    assert contents(root / "resumed") == contents(root / "whole")


def assert_as_in_peace(options: dict[str, Any]) -> None:
    """The outputs of a build are those of one that nothing happened to."""
    peace = options["out"].with_name("peace")
    build(**options | {"out": peace})
    assert contents(options["out"]) == contents(peace)
