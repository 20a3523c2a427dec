"""tokenmill beside other tokenizers in one run: `make bench`, `make bench CORPUS=FILE ARGS=...`.

Law: a figure counts only if the results were equal. Every measurement has a process of its own, the
two sides take turns, and what is quoted is the median of the ratios of neighbours: machines change
their speed.

    __main__.py   the command: which work, on which text, with which tokenizers
    rounds.py     processes that take turns; seconds, memory, equality, ratios
    child.py      one measurement in a process of its own
    job.py        what a measurement is told, and how it tells what it measured
    corpora.py    text: the default, of any size, the worst
    training.py splitting.py encoding.py token_files.py formats.py sampling.py loaders.py
    packing.py chats.py rows.py
                  the work, one function for each side; a further peer is one more function
    studies.py    ours alone: scaling, growth, worst cases, where the time goes, instructions
    report.py     machine and versions, Markdown, JSON
"""
