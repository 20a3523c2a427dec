"""One run: what it does, how far it is, what limits and ends it.

plan          what a run does: sources, passes, outputs, disk space
fingerprint   its inputs, and how they differ from those of another run
count_pass    count pre-tokens and train; `spill`: counts that do not fit into memory
encode_pass   encode text into sinks; `sinks`: where encoded documents go
units         work units of several sources, and where to resume
journal       what has been done, so that the same command resumes a run
outputs       output files: begun, resumed, refused, committed
compiling     kernels are compiled in stages of their own
memory_limit  fit the run to `--memory-limit`
signals       end a command after a signal, or when a worker hangs
"""
