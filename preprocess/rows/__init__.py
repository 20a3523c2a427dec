"""Rows of tokens, cut from a dataset and written to files that other programs read.

columns      arrays of rows: ids, masks, labels
layout       which rows, arrays and files settings mean
formats      the formats of files and their table; each in `tables`, `json_lines`, `npz`, `pickled`
write        write all files of a dataset, resumable
manifest     what a directory of rows says about itself
access       which files there are, and random access to the records of several
loaders      sources of records in shards, resumable
pytorch      datasets for a DataLoader or the Trainer
"""
