"""A dataset as files that trainers of others read.

formats      the formats and their table; `mds`: shards of MosaicML Streaming
source       the dataset as formats read it, and the files that they describe
write        write the files of an export, resumable
"""
