"""Every compiled function of the tokenizer, under the names they have in `bpe.reference`.

Law: kernels see only flat arrays and integers. They allocate nothing and raise nothing (they return
a status; the wrapper in `bpe` raises), hold no GIL, and give with compilation switched off
(`NUMBA_DISABLE_JIT=1`) the same arrays as with it.

    jit           how they are called, and compiled when they are needed
    machine_code  the cache on disk, and how machine code comes into the process
    compiler      what numba and LLVM make of a kernel; `plain_numba`, where that way fails
    machine       single instructions that Python has no word for
    intrinsics    what the compiler makes of those
    split         bytes -> boundaries of pre-tokens, and `split_*`, of which scanners are made
    search        where a byte string occurs
    utf8          whether bytes are well-formed
    count         pre-tokens -> counts
    learn_merges  counts -> merges
    encode        pre-tokens -> token ids
    apply_merges  one pre-token -> token ids, and `merge_tables`, what that looks things up in
    words         what pre-tokens became, for all threads

Only what compiles imports numba, which takes a fifth of a second and more; what a process runs is
machine code that is there already.
"""
