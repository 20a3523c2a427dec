"""A dataset as files that trainers of others read.

formats      the table of formats
megatron     `.bin` and `.idx` of Megatron-LM
llmc         shards of llm.c
datatrove    `.ds` of datatrove and nanotron
mds          shards of MosaicML Streaming
litdata      chunks of litdata
npy          arrays of NumPy
source       the dataset as formats read it, and the files that they describe
manifest     what an export says about itself
write        write the files of an export, resumable
"""
