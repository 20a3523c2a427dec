"""Change a finished dataset: append documents, drop documents."""
