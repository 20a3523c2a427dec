"""Rows of tokens, cut from a dataset and written to files that other programs read.

columns      arrays of rows: ids, masks, labels
layout       which rows, arrays and files settings mean
formats      the formats of files: `parquet`, `arrow`, `json_lines`, `npz`, `pickled`
write        write all files of a dataset, resumable
manifest     what a directory of rows says about itself
access       random access to the records of files of any format
loaders      sources of records in shards, resumable
pytorch      datasets for a DataLoader or the Trainer
places       files and directories of rows: paths, or URLs
"""
