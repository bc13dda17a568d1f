"""The one table of translation: the name of each of JAX's primitives -> what it is in Volta, or why it is refused."""

from __future__ import annotations

from volta.interop.jaxprs import (
    callbacks,
    control,
    derivatives,
    elementwise,
    indexing,
    matrices,
    movement,
    randoms,
    reducing,
)
from volta.interop.jaxprs.equations import Rule, Translator

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **movement.RULES,
    **reducing.RULES,
    **indexing.RULES,
    **control.RULES,
    **derivatives.RULES,
    **randoms.RULES,
    **matrices.RULES,
    **callbacks.RULES,
}

_COLLECTIVE = (
    "collectives along an axis of several devices are not translated. Map the function by jax.vmap with axis_name "
    "inside of from_jax, or by volta.shard_map around functions of Volta's"
)
_GENERATOR = "bits come from keys of threefry: use jax.random.key(seed) and jax.random.bits"
_REFERENCE = "arrays are immutable here; use x.at[...].set"
_ORDER = "calls keep the program's order by themselves; leave the tokens out"
_MATRIX = "this decomposition is not there yet; compute it outside, or through jax.pure_callback"
_COMPLEX = "complex numbers are not translated; keep the real and the imaginary part as two arrays"
_FUNCTION = "this special function is not there yet; call SciPy's through jax.pure_callback"
_TOTAL = "an order of floats with NaN is not there; use lt, le and eq"
_PLACED = "it says where or how XLA computes; leave it out"


def _each(way: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), way)


REFUSED: dict[str, str] = {
    name: way
    for name, way in {
        **_each(
            _COLLECTIVE, "all_gather all_gather_invariant all_to_all axis_index pbroadcast pmax pmin ppermute psum"
        ),
        **_each(_COLLECTIVE, "psum_invariant psum_scatter ragged_all_to_all reduce_scatter shard_map xla_pmap"),
        **_each(_GENERATOR, "rng_bit_generator rng_uniform"),
        **_each(_REFERENCE, "get swap addupdate new_ref free_ref run_state for"),
        **_each(_ORDER, "after_all create_token dce_sink"),
        **_each(_MATRIX, "hessenberg householder_product ormqr schur tridiagonal tridiagonal_solve geqrf geqp3"),
        **_each(_COMPLEX, "complex conj fft imag real"),
        **_each(_FUNCTION, "bessel_i0e bessel_i1e igamma igammac igamma_grad_a polygamma random_gamma_grad zeta"),
        **_each(_FUNCTION, "regularized_incomplete_beta mulhi"),
        **_each(_TOTAL, "eq_to le_to lt_to"),
        **_each(_PLACED, "composite custom_partitioning ffi_call pallas_call stage custom_lin"),
        "ragged_dot_general": "write it as jax.numpy.matmul for each group",
        "scaled_dot": "there are no dtypes below 8 bits; use dot_general",
        "select_and_scatter": "pool by jax.lax.reduce_window with max, min or add, and let JAX differentiate it",
    }.items()
    if name not in RULES
}

TRANSLATOR = Translator(RULES, REFUSED)
