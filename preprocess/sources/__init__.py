"""Where documents come from: paths become sources, sources work units, units batches."""

from preprocess.sources.base import ResumePoint, Source, WorkUnit, digest_of
from preprocess.sources.registry import find_sources

__all__ = ["ResumePoint", "Source", "WorkUnit", "digest_of", "find_sources"]
