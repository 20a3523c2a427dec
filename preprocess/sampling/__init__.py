"""Out of the files, into the training loop.

Law: sampling imports `preprocess.dataset` and nothing else of ours, so that who only samples
    never loads the builder; PyTorch is imported only by a call that asks for tensors.
"""

from preprocess.sampling.batches import SamplingError, get_batch

__all__ = ["SamplingError", "get_batch"]
