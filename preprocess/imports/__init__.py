"""Token ids that other programs made, as a dataset.

formats      the table of formats
megatron     `.bin` and `.idx` of Megatron-LM
raw          a file of ids without a header
ids_file     a file of ids as formats open it
write        write the dataset, resumable
"""
