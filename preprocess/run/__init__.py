"""Execution of one run: plan, passes, checkpoints, outputs, limits.

reading       the passes over the text, how they read, and the tokenizer that is given
plan          decide on sources, passes and outputs, and whether there is room for them
record        record the inputs of a run, and compare two records
selection     select documents before the other passes; `shuffle`: order token files at random
count_pass    count pre-tokens, also more than memory holds, and train
encode_pass   encode text into token files
vocab_curve   count the tokens of held-out text for every size of a vocabulary
chats         find the chat template of a run, and apply one to single records
passes        train, encode and publish; `parts`: a run as parts on workers of Ray
units         run work on threads, and resume after any unit
run           lock, resume or refuse a run, and give its files their names; `journal`: checkpoints
outputs       tokenizer, statistics and bad records of a run; files that are there already
merge         join the parts that tasks built
compiling     compile kernels in a stage of their own
memory_limit  fit the run to `--memory-limit`
signals       end a command after a signal, or when a worker hangs
"""
