"""Matrix products: the strict kernels (`dot`), few rows (`dot_vector`), and tensor cores (`dot_tensor`)."""
