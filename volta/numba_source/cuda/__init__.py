"""The same texts on a GPU: ``@cuda.jit`` functions that numba-cuda compiles, launched as Volta's own kernels are."""
