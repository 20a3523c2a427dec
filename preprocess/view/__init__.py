"""A page in the browser that shows datasets and tokenizers: the command `tokenmill view`.

documents    tokens of a document; search
statistics   the pass over a dataset: how often ids occur, unusual documents
numbers      the numbers of a report
steps        rows of a training step
vocabulary   tokens of a text, merges, vocabularies
server       the server, and what it serves
"""
