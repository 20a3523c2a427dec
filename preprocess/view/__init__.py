"""A page in the browser that shows datasets and tokenizers: the command `tokenmill view`.

documents    tokens of a document; search
statistics   one pass over a dataset: how often ids occur, longest documents
steps        rows of a training step
vocabulary   tokens of a text, merges, vocabularies
server       the server, and what it serves
"""
