"""Look at what is there: datasets, tokenizers, this machine.

verify             token files against their manifests; `rebuild`: from their sources
inspect            describe files and directories; `inspect_tokenizer`, `quality`: statistics
compare            two tokenizers on the same text
doctor             whether this machine is fit for a long job
"""
