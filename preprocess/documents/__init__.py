"""Documents between a source and the kernels: batches, and positions in them."""
