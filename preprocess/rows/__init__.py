"""Rows of tokens, cut from a dataset and written to files that other programs read.

plan         which tokens a row has: windows of documents, packed rows, cuts of the stream
columns      arrays of rows: ids, masks, labels
formats      the formats of shards: `parquet`, `arrow`, `json_lines`, `npz`, `pickled`
write        write all shards of a dataset, resumable
manifest     what a directory of rows says about itself
access       random access to rows of any format
loaders      sources of records in shards, resumable
pytorch      datasets for a DataLoader or the Trainer
layout       where the rows of a configuration are
"""
