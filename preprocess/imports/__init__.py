"""Token ids that other programs made, as a dataset.

formats      the formats and their table: where ids are, and where documents end
write        write the dataset, resumable
"""
