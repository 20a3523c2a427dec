"""How compiled code gets into the process, and single machine instructions.

Kernels are Python functions that take flat arrays and integers, allocate nothing, raise nothing
(they return a status) and hold no GIL. Without compilation (`NUMBA_DISABLE_JIT=1`) they give the
same arrays.

A `jit.Kernel` looks at the kinds of its arguments, and looks for machine code for these kinds: in
the process, in the cache on disk, else numba's front end translates the kernel, and the kernels
that it calls, to LLVM's code, which is linked into one module and optimised once. The object file
is kept in the cache, and the next process loads it with LLVM alone.

Why not `numba.njit(cache=True)`: it compiles the kernels of a build in three times the time, as
each callee is optimised again in its callers; and every process imports numba, which takes 0.3 s
and 65 MB. Where numba has changed so much that our way of compiling fails, it is what is used.

jit           how kernels are called, and compiled when they are needed
machine_code  the cache on disk, and how machine code comes into the process; `user_cache`: files
compiler      numba and LLVM for a kernel; `plain_numba`, where that way fails
machine       single instructions that Python has no word for; `intrinsics`: as LLVM code
arrays        arrays for kernels: on huge pages, checked
"""
