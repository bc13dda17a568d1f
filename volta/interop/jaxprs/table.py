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
_HIGHER = "values of types of one's own are not there; pass the arrays that they are made of"
_SIZES = "sizes are known numbers here; trace the function for the shapes of its arguments"
_CUDNN = "it is a function of cuDNN's; call it without naming an implementation"
_ORDER = "calls keep the program's order by themselves; leave the tokens out"
_MATRIX = "this decomposition is not there yet; compute it outside, or through jax.pure_callback"
_FUNCTION = "this special function is not there yet; call SciPy's through jax.pure_callback"
_PLACED = "it says where or how XLA computes; leave it out"


_IN_TWO_PARTS = (
    "all_gather all_gather_reduced all_to_all pbroadcast ppermute psum psum_invariant reduce_scatter unreduced_psum "
    "unreduced_reduce_scatter"
).split()


def _each(way: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), way)


REFUSED: dict[str, str] = {
    name: way
    for name, way in {
        **_each(
            _COLLECTIVE, "all_gather all_gather_invariant all_to_all axis_index pbroadcast pmax pmin ppermute psum"
        ),
        **_each(_COLLECTIVE, "psum_invariant psum_scatter ragged_all_to_all reduce_scatter shard_map xla_pmap"),
        **_each(_COLLECTIVE, "all_gather_reduced preduced psend precv unreduced_psum unreduced_reduce_scatter"),
        **_each(_COLLECTIVE, "reduced_vary_cast_p vary_unreduced_cast_p unreduced_pmax unreduced_pmin"),
        **_each(_COLLECTIVE, "global_array_to_host_local_array host_local_array_to_global_array"),
        **{f"{name}_{part}": _COLLECTIVE for name in _IN_TWO_PARTS for part in ("start", "done")},
        **_each(_GENERATOR, "rng_uniform philox2x32 philox4x32 threefry4x32"),
        **_each(_REFERENCE, "get swap addupdate new_ref empty_ref free_ref freeze accum_grad_in_ref run_state for"),
        **_each(_REFERENCE, "broadcast_to create_linear pin unpin tie"),
        **_each(_HIGHER, "new_box box_get box_set new_log log_extend log_read to_edtype from_edtype eval_jaxpr"),
        **_each(_HIGHER, "call_hi_primitive call_hi_primitive_linearized"),
        **_each(_SIZES, "dim_as_value dimension_size shape_assertion call_exported"),
        **_each(_CUDNN, "cudnn_fusion dot_product_attention_fwd dot_product_attention_bwd scaled_matmul"),
        **_each(_CUDNN, "dot_product_attention_fp8_fwd dot_product_attention_fp8_bwd"),
        **_each(_ORDER, "after_all create_token dce_sink"),
        **_each(
            _MATRIX,
            "hessenberg schur tridiagonal tridiagonal_solve geqrf geqp3",
        ),
        **_each(_FUNCTION, "bessel_i0e bessel_i1e igamma igammac igamma_grad_a polygamma random_gamma_grad zeta"),
        **_each(_FUNCTION, "regularized_incomplete_beta"),
        **_each(_PLACED, "composite custom_partitioning ffi_call pallas_call stage custom_lin"),
        **_each(_PLACED, "core_map with_memory_space_constraint inspect_sharding"),
        **_each("it is JAX's own, of programs that are differentiated already", "custom_jvp_call_jaxpr unreachable"),
        "check": "functionalize it by jax.experimental.checkify.checkify inside of from_jax",
        "iota_2x32_shape": "draw by jax.random.bits, or make it of jax.lax.iota",
        "linear_call": "use jax.custom_vjp",
        "remat_opt": "leave out optimize_remat of jax.custom_vjp",
        "ragged_dot_general": "write it as jax.numpy.matmul for each group",
        "scaled_dot": "there are no dtypes below 8 bits; use dot_general",
        "select_and_scatter": "pool by jax.lax.reduce_window with max, min or add, and let JAX differentiate it",
    }.items()
    if name not in RULES
}

TRANSLATOR = Translator(RULES, REFUSED)
