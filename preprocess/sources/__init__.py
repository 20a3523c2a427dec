"""Sources of documents: paths to sources, sources to work units, units to batches."""

from preprocess.sources.base import ResumePoint, Source, WorkUnit, digest_of
from preprocess.sources.find import check_fields_are_used, find_sources, looks_into

__all__ = [
    "ResumePoint", "Source", "WorkUnit", "check_fields_are_used", "digest_of", "find_sources",
    "looks_into",
]
