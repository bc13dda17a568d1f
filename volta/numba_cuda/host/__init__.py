"""The same kernels run on the host, without a GPU, with every access checked."""
