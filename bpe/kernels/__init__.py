"""Every compiled function of the tokenizer, under the names they have in `bpe.reference`.

Kernels take flat arrays and integers, allocate nothing, raise nothing (they return a status), hold
no GIL, and give the same arrays without compilation (`NUMBA_DISABLE_JIT=1`).

    jit           how they are called, and compiled when they are needed
    machine_code  the cache on disk, and how machine code comes into the process
    compiler      numba and LLVM for a kernel; `plain_numba`, where that way fails
    machine       single instructions that Python has no word for; `intrinsics`: as LLVM code
    vectors       eight words at a time; `vector_intrinsics`: as LLVM code
    split         bytes -> boundaries of pre-tokens, and `split_*`, of which scanners are made
    search        where a byte string occurs
    utf8          whether bytes are well-formed
    count         pre-tokens -> counts
    learn_merges  counts -> merges
    encode        pre-tokens -> token ids; `group`: memory for them, `misses`: their caches
    apply_merges  one pre-token -> token ids; `merge_short`: a short one, `merge_tables`: look-up
    words         encoded pre-tokens, for all threads

Numba is imported only to compile, which takes a fifth of a second and more.
"""
