"""Programs of JAX's and Volta's in each other: see docs/jax.md."""
