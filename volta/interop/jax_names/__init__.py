"""JAX's module names answered by Volta: what ``import volta.as_jax`` puts in place. docs/jax.md says what is there."""
