"""Options, declared once for Python, the command line and the documentation."""
