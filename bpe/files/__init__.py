"""Files: atomic writes, JSON, the user's cache, locations."""
