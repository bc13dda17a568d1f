"""``import volta.as_jax``: from then on ``import jax`` means Volta in this process.

Libraries that are written on JAX's public names then run on Volta, unchanged. It has to come before the first import of
JAX. A name that Volta does not have is an error that says so where it is imported or asked for. docs/jax.md has more.

>>> import volta.as_jax  # doctest: +SKIP
>>> import jax.numpy as jnp  # doctest: +SKIP
>>> jnp.arange(3) + 1  # doctest: +SKIP
Array([1, 2, 3], dtype=int32)
"""

from volta.interop.jax_names.finder import install as _install

_install()
