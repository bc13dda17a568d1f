"""Loop kernels in variants: maps, rows and columns, and reductions cut into blocks and combined."""
