"""Damage files, and list what verify found."""

from __future__ import annotations

from pathlib import Path

from preprocess.check.verify import Finding


def damages(findings: list[Finding]) -> list[str]:
    return [f"DAMAGED  {each.path}: {each.text}" for each in findings if not each.sound]


def flip(path: Path, place: int) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
