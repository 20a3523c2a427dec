"""Rows of tokens, cut from a dataset and written to files that other programs read.

columns      arrays of rows: ids, masks, labels
formats      the formats of files, and their table
write        which rows settings mean, and all files of a dataset, resumable
manifest     what a directory of rows says about itself
loaders      sources of records in shards, resumable; the rows of a directory
pytorch      datasets for a DataLoader or the Trainer
"""
