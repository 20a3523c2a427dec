"""tokenbin beside other tokenizers in one run: `make bench`, `make bench ARGS="--corpus FILE"`.

Law: a figure counts only if the results were equal. Every measurement has a process of its own, the
two sides take turns, and what is quoted is the median of the ratios of neighbours: machines change
their speed.
"""
