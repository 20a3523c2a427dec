"""Report progress while a run works, and a summary at its end."""
