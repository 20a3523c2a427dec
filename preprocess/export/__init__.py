"""A dataset as files that trainers of others read.

formats      the formats and their table: which files each has
write        write the files of an export, resumable
"""
