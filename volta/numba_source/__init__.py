"""A plan's kernels as Numba functions that a person reads, steps through and runs.

The same plan, the same launch table and the same bits as the kernels that Volta writes as LLVM; `texts` has the road
from a kernel's description to its text, `words` what the text calls, `backend` how it is run.
"""
