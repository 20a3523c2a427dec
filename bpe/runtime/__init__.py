"""How compiled code gets into the process, and single machine instructions.

Kernels take flat arrays and integers, allocate nothing, raise nothing (they return a status), hold
no GIL, and give the same arrays without compilation (`NUMBA_DISABLE_JIT=1`). Numba is imported only
to compile, which takes a fifth of a second and more.

jit           how kernels are called, and compiled when they are needed
machine_code  the cache on disk, and how machine code comes into the process; `user_cache`: files
compiler      numba and LLVM for a kernel; `plain_numba`, where that way fails
machine       single instructions that Python has no word for; `intrinsics`: as LLVM code
arrays        arrays for kernels: on huge pages, read-only, checked
"""
