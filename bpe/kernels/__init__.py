"""Every compiled function of the tokenizer, under the names they have in `bpe.reference`.

Law: kernels see only flat arrays and integers. They allocate nothing and raise nothing (they return
a status; the wrapper in `bpe` raises), hold no GIL, and give with compilation switched off
(`NUMBA_DISABLE_JIT=1`) the same arrays as with it.

    jit       how they are compiled, cached and announced
    machine   single instructions that Python has no word for
    split     bytes -> boundaries of pre-tokens
    search    where a byte string occurs
    utf8      whether bytes are well-formed
    count     pre-tokens -> counts
    merge     counts -> merges
    encode    pre-tokens -> token ids
    words     what pre-tokens became, for all threads

This package imports numba, which takes half a second; nothing imports it before there is work to
do.
"""
