"""Questions about a dataset: where texts occur in it, and where its tokens come from.

byte_search     the kernel that finds byte strings in tokens, and its tables
occurrences     byte strings in a whole dataset, chunk by chunk, on threads
search          texts and ids in a dataset: counts, documents, sources, places
contamination   share of the n-grams of evaluation items that a dataset has
where           document and source of a token
steps           the rows of a training step
"""
