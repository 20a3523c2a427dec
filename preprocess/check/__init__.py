"""Inspection of datasets, tokenizers and this machine.

verify       check token files against manifests; `rebuild`: restore them from their sources
inspect      describe files and directories
decode       decode token files
compare      encode the same text with two tokenizers
vocab_curve  choose the size of a vocabulary by held-out text
doctor       check whether this machine is fit for a long job
"""
