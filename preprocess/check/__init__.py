"""Inspection of datasets, tokenizers and this machine.

verify          check token files against manifests; `rebuild`: restore them from their sources
inspect         describe files and directories; `scan`: read a token file once for its numbers
report_numbers  measure datasets before training; `report_page`: draw the numbers as a page
decode          decode token files
compare         encode the same text with two tokenizers
vocab_curve     choose the size of a vocabulary by held-out text
doctor          check whether this machine is fit for a long job
"""
