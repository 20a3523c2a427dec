"""Every compiled function of the tokenizer; the definitions are those of `bpe.reference`.

Kernels take flat arrays and integers, allocate nothing, raise nothing (they return a status), hold
no GIL, and give the same arrays without compilation (`NUMBA_DISABLE_JIT=1`).

    runtime   how kernels are compiled, kept on disk, loaded and called; single instructions
    search    where a byte string occurs
    utf8      whether bytes are well-formed
    json_strings   JSON strings -> text
    pack      which documents share a packed window
    pieces    batches of rows, piece by piece
    split     bytes -> boundaries of pre-tokens
    train     pre-tokens -> counts -> merges
    encode    pre-tokens -> token ids

Numba is imported only to compile, which takes a fifth of a second and more.
"""
