"""How compiled code gets into the process, and single machine instructions.

jit           how kernels are called, and compiled when they are needed
machine_code  the cache on disk, and how machine code comes into the process
compiler      numba and LLVM for a kernel; `plain_numba`, where that way fails
machine       single instructions that Python has no word for; `intrinsics`: as LLVM code
"""
