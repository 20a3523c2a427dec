"""A page in the browser that shows datasets and tokenizers: the command `tokenmill view`.

library      what is shown, and the pass over a dataset
documents    tokens of a document; search
numbers      unusual documents; the numbers of a report
steps        rows of a training step
vocabulary   tokens of a text, merges, vocabularies
server       the server, and what it serves
"""
