"""Files of a dataset: columns over one token stream, and a manifest.

    NAME.bin    uint16 or uint32 [n_tokens]: token ids of all documents, concatenated
    NAME.docs   uint64 [n_documents]: the position in NAME.bin just past each document
    NAME.json   the manifest: a JSON object, described by `Manifest`

Data files are raw little-endian values without a header, so `np.memmap(path, dtype=np.uint16)`
reads NAME.bin. A manifest under its final name describes complete files in its directory: it is
removed before they are replaced, and renamed after them (`preprocess.storage`). Files do not depend
on time, machine or path: the same ids give the same bytes. Data files are listed in
`preprocess.dataset.columns.COLUMNS`.

With shards there are NAME_00000.bin and NAME_00000.docs, NAME_00001.bin and so on, with document
ends relative to the shard, and one NAME.json. A shard ends before the first document that does not
fit; a document larger than a shard has its own. If documents may be split, every shard but the last
is full, and the end of a document is in the shard of its last id.
"""
