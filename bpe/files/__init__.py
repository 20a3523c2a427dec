"""Files: written whole or not at all, read in pieces, cached, found by name."""
