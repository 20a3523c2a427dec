"""Files: atomic writes, temporary directories, locations."""
