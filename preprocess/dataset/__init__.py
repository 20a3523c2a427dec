"""The files of a dataset: columns over one token stream, and the manifest that describes them.

    NAME.bin    uint16 or uint32 [n_tokens]: token ids of all documents, concatenated
    NAME.docs   uint64 [n_documents]: the position in NAME.bin just past each document
    NAME.json   the manifest: a JSON object, described by `Manifest`

Data files are raw little-endian values without a header, so `np.memmap(path, dtype=np.uint16)`
reads NAME.bin. A manifest under its final name always describes complete files next to it: it is
removed before they are replaced and put in place after them (`preprocess.storage`). Nothing depends
on the time, the machine or the path: the same ids give the same bytes. The data files are the
columns listed in `preprocess.dataset.columns.COLUMNS`.

With shards there is NAME_00000.bin with NAME_00000.docs, NAME_00001.bin and so on instead, each as
above and with ends that count from its own start; NAME.json is one for all of them. A shard ends
before the document that would not fit; a document larger than a shard has one of its own. Where
documents may be split, every shard but the last is full, and a document's end is in the shard that
holds it.
"""
