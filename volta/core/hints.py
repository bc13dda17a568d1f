"""Names and keywords of JAX, NumPy, optax and the like that Volta does not have, and what to write instead.

``core/absent.py`` says it where people look for them. A name may be a pattern (``*_p``).
"""

from __future__ import annotations

_DEVICES = (
    "a jitted call runs where its arguments lie: cut them over a mesh by volta.device_put(x, "
    "volta.sharding.NamedSharding(mesh, spec)), or put them on a device by volta.device_put(x, 'cuda:1')"
)
_SWITCHES = "there are no global switches; docs/settings.md lists the settings, volta.execution_context sets a block's"
_FLOAT64 = "float64 is always there: ask for it by dtype"
_PROMOTION = "there is one rule of promotion, JAX's standard one; volta.lax promotes nothing"
_INTEGERS = "integers have no tangents: name the float arguments with argnums"
_NARROW = "there are no dtypes below 8 bits and no float8; volta.numpy.int8, float16 and bfloat16 are the narrowest"
_MATRICES = (
    "this decomposition is planned. Outside of traced functions use NumPy's or SciPy's on numpy.asarray(x), "
    "and pass the result in"
)
_DISTRIBUTION = (
    "this distribution is planned. volta.scipy.stats has those of jax.scipy.stats, volta.random draws from more"
)
_CONVOLUTION = "volta.lax.conv_general_dilated has all convolutions"
_SPECIAL = (
    "this function is planned. Outside of traced functions use SciPy's on numpy.asarray(x), and pass the result in"
)
_COLLECTIVE = "this collective is not there; volta.lax.ppermute, all_gather and all_to_all move data along a named axis"
_IMMUTABLE = "arrays are immutable, there are no references to memory: x = x.at[...].set(y)"
_PRIMITIVE = "primitives are not public; print(volta.make_jaxpr(f)(x)) shows which a program is made of"
_SHAPES = "a program is traced for each shape; pad to a few shapes to have few programs"
_OPTIMIZER = (
    "this optimizer is planned; there are adam, adamw, adagrad, lion, rmsprop and sgd. An optimizer is two functions: "
    "write volta.optim.GradientTransformation(init, update), or volta.optim.chain of volta.optim.scale_by_adam and such"
)
_TRANSFORMATION = (
    "this transformation is planned. One is two functions: write volta.optim.GradientTransformation(init, update)"
)
_SCHEDULE = "this schedule is planned. A schedule is a function from the step to a number: write one with volta.numpy"
_LAYER = (
    "volta.nn holds functions, no layers: a layer is a function of its parameters and of x (x @ w + b), and a model's "
    "parameters are a pytree that the caller keeps"
)
_PROFILER = (
    "there is no profiler yet: jitted.lower(x).compile().memory_report() says what memory a program needs, "
    "volta.log_compiles() what is compiled and how long it takes"
)
_LIBRARY = (
    "libraries on top of JAX are no part of Volta: volta.from_jax runs programs that use them (docs/jax.md), and "
    "volta.nn and volta.optim hold functions on pytrees"
)
_CACHES = "jitted.clear_cache() forgets the programs of one function; docs/settings.md has the disk cache's settings"


def _each(way: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), way)


HINTS: dict[str, dict[str, str]] = {
    "volta": {
        **_each(_DEVICES, "pmap smap set_mesh reshard"),
        **_each(_DEVICES, "Device host_count host_id host_ids process_indices auto_pcast"),
        **_each(_DEVICES, "remove_size_one_mesh_axis_from_type"),
        "ffi": "volta.pure_callback calls Python functions, volta.kernel makes operations of functions for Numba",
        **_each(_SWITCHES, "softmax_custom_jvp"),
        **_each(_SWITCHES, "config enable_checks enable_custom_prng default_prng_impl debug_key_reuse transfer_guard*"),
        **_each(_SWITCHES, "legacy_prng_key threefry_partitionable thread_guard no_tracing no_execution allow_*"),
        **_each(
            _SWITCHES, "jax2tf_* array_garbage_collection_guard check_tracer_leaks checking_leaks make_user_context"
        ),
        **_each(_FLOAT64, "enable_x64"),
        **_each(_PROMOTION, "numpy_dtype_promotion numpy_rank_promotion"),
        **_each(_IMMUTABLE, "Ref ref new_ref empty_ref free_ref freeze"),
        **_each(_PROFILER, "profiler monitoring live_arrays memory print_environment_info"),
        **_each(_CACHES, "clear_caches"),
        **_each(
            "it is volta.tree.map, volta.tree.leaves and so on", "tree_map tree_leaves tree_flatten tree_unflatten"
        ),
        **_each("volta.make_jaxpr gives programs; their parts are not public", "api_util extend interpreters lib"),
        **_each("volta.make_jaxpr gives programs; their parts are not public", "ad stages"),
        **_each(_LIBRARY, "flax haiku equinox jraph trax objax optax chex orbax diffrax numpyro distrax brax jaxopt"),
        "copy_to_host_async": "numpy.asarray(x) copies to the host",
        "ensure_compile_time_eval": "what NumPy computes from Python numbers is computed while tracing",
        "explain_cache_misses": "volta.log_compiles() says what is compiled and why again",
        "named_call": "it is volta.named_scope",
        "typeof": "it is volta.eval_shape(lambda: x)",
    },
    "volta.ops": {
        **{name: f"it is volta.nn.{name}" for name in ("segment_sum", "segment_prod", "segment_max", "segment_min")},
    },
    "volta.lax": {
        **_each(_CONVOLUTION, "conv_*"),
        "ConvGeneralDilatedDimensionNumbers": "it is a tuple of three layouts: ('NHWC', 'HWIO', 'NHWC')",
        **_each("it is volta.lax.reduce_window, whose extremes have derivatives", "reduce_window_* select_and_*"),
        **_each(_COLLECTIVE, "pbroadcast pcast precv psend ragged_all_to_all"),
        "scatter_apply": "it is x.at[indices].apply(f)",
        **_each("it is volta.scipy.special.gammainc, and for igammac gammaincc", "igamma igammac igamma_grad_a"),
        **_each("it is volta.scipy.special.i0e or i1e", "bessel_i0e bessel_i1e"),
        **_each(_SPECIAL, "random_gamma_grad"),
        **_each("it is volta.lax.ragged_dot", "ragged_dot_general Ragged*"),
        **_each("programs have no effects, so nothing orders them", "after_all create_token dce_sink"),
        **_each("random bits come from keys: volta.random.bits", "rng_uniform"),
        **_each("precision is a name, 'highest' or 'bfloat16'; docs/from_jax.md lists them", "AccuracyMode"),
        **_each("precision is a name, 'highest' or 'bfloat16'; docs/from_jax.md lists them", "PrecisionLike Tolerance"),
        **_each("indices say it: volta.numpy.take, x[...] and x.at[...]", "index_take"),
        **_each("it is a tuple, ((contracted, contracted), (batch, batch))", "DotDimensionNumbers"),
        **_each("all backends have one program", "platform_dependent stage"),
        "broadcast_to_rank": "it is volta.numpy.expand_dims, or x[None]",
        "dtype": "it is x.dtype",
        "empty": "it is volta.numpy.zeros",
        "cumlogsumexp": "it is volta.lax.associative_scan(volta.numpy.logaddexp, x)",
        "scaled_dot": _NARROW,
        "shape_as_value": "it is x.shape",
        "*_p": _PRIMITIVE,
    },
    "volta.nn": {
        **_each(_NARROW, "scaled_matmul scaled_dot_general get_scaled_dot_general_config"),
        **_each(_LAYER, "Module Dense Linear Conv Conv[123]d BatchNorm LayerNorm RMSNorm Embed Embedding Sequential"),
        **_each(_LAYER, "LSTM LSTMCell GRU GRUCell MultiHead* Parameter compact"),
        **_each("it is volta.numpy.where(volta.random.bernoulli(key, keep, x.shape), x / keep, 0)", "dropout Dropout"),
        **_each("it is volta.nn.softmax_cross_entropy", "cross_entropy CrossEntropyLoss"),
    },
    "volta.nn.initializers": {},
    "volta.numpy": {
        **_each("arrays have one layout: it is volta.numpy.asarray", "asanyarray ascontiguousarray asfortranarray"),
        **_each(_NARROW, "float4_* float6_* float8_* int1 int2 int4 uint1 uint2 uint4"),
        "random": "random numbers come from keys: volta.random.normal(volta.random.key(0), (3,))",
        "copyto": "arrays are immutable: x = x.at[...].set(y), or volta.numpy.where(mask, y, x)",
        "trapz": "it is volta.numpy.trapezoid",
        "in1d": "it is volta.numpy.isin",
        "row_stack": "it is volta.numpy.vstack",
    },
    "volta.random": {
        **_each("numbers come from keys: volta.random.normal(volta.random.key(0), (3,))", "seed rand randn random"),
        **_each("numbers come from keys: volta.random.normal(volta.random.key(0), (3,))", "RandomState default_rng"),
        "shuffle": "it is volta.random.permutation",
        "*_p": _PRIMITIVE,
    },
    "volta.scipy": {
        "spatial": "rotations are matrices: write them with volta.numpy",
    },
    "volta.debug": {
        **_each("callbacks have no types of effects: debug.callback(..., ordered=True) keeps their order", "*Effect"),
        **_each("x.sharding.spec says how an array is cut", "inspect_array_sharding visualize_*"),
    },
    "volta.experimental": {
        **_each("docs/settings.md has the disk cache's settings", "compilation_cache"),
        **_each("volta.make_jaxpr gives programs; their types are shapes and dtypes", "cur_qdd primal_tangent_dtype"),
        **_each("volta.distributed starts workers, and arrays of all are cut by shardings", "multihost_utils"),
        "EArray": "arrays of keys are what volta.random.key and split give",
    },
    "volta.errors": {
        **_each("sizes are numbers here: a program is traced for each shape", "InconclusiveDimensionOperation"),
        **_each("it is volta.errors.VoltaError, which all errors are", "JAXTypeError JaxRuntimeError"),
        **_each("indices out of range are an IndexError", "JAXIndexError"),
        **_each("it is volta.errors.VerificationError", "JaxprTypeError"),
        **_each("keys are arrays, and nothing watches how often one is used", "KeyReuseError"),
    },
    "volta.custom_derivatives": _each(
        "it is volta.lax.custom_linear_solve for equations, or volta.custom_vjp with a rule that calls the transpose",
        "linear_call",
    ),
    "volta.ad_checkpoint": {
        **_each("what a policy answers is True or False: volta.checkpoint_policies", "Offloadable Recompute Saveable"),
        "print_saved_residuals": "print(volta.make_jaxpr(lambda x: volta.vjp(f, x)[1])(x)): its results are saved",
    },
    "volta.sharding": {
        **_each("a mesh is of devices that are there: volta.sharding.make_mesh", "Abstract* *_abstract_mesh"),
        **_each("the compiler says how results are cut, from how arguments are", "*AxisType *_axes reshard"),
        **_each("arrays carry their mesh: x.sharding.mesh", "get_mesh set_mesh"),
        "Sharding": "it is NamedSharding or SingleDeviceSharding",
        "make_single_device_sharding": "it is volta.sharding.SingleDeviceSharding(device)",
    },
    "volta.scipy.optimize": _each(
        "there is volta.scipy.optimize.minimize; for others use SciPy's with jac=volta.grad(f)",
        "OptimizeResult brentq curve_fit fsolve least_squares linprog minimize_scalar root",
    ),
    "volta.scipy.ndimage": _each("there is volta.scipy.ndimage.map_coordinates", "rotate shift zoom affine_transform"),
    "volta.scipy.integrate": _each(
        "volta.experimental.ode.odeint solves differential equations; sums of samples are quadratures",
        "odeint solve_ivp quad",
    ),
    "volta.lax.linalg": _each(
        _MATRICES,
        "hessenberg qdwh tridiagonal",
    )
    | _each(
        "there is one algorithm, stated in docs/determinism.md", "EigImplementation EighImplementation SvdAlgorithm"
    )
    | {"*_p": _PRIMITIVE},
    "volta.scipy.linalg": {},
    "volta.scipy.stats": _each(
        _DISTRIBUTION, "lognorm weibull_min weibull_max skewnorm halfnorm rayleigh f invgamma triang randint hypergeom"
    ),
    "volta.scipy.special": {
        **_each(_SPECIAL, "wofz"),
        "sph_harm": "it is sph_harm_y(n, m, polar, azimuth)",
        **_each(_SPECIAL, "lpmn lpmn_values"),
    },
    "volta.optim": {
        **_each(_OPTIMIZER, "adabelief adadelta adafactor adamax adamaxw adan amsgrad fromage lamb lars lbfgs nadam"),
        **_each(
            _OPTIMIZER, "nadamw noisy_sgd novograd optimistic_* polyak_sgd radam rprop sign_sgd sm3 yogi rmsprop_*"
        ),
        **_each(_TRANSFORMATION, "MultiSteps masked multi_transform partition inject_hyperparams apply_every"),
        **_each(_TRANSFORMATION, "apply_if_finite adaptive_grad_clip centralize ema keep_params_nonnegative zero_nans"),
        **_each(_TRANSFORMATION, "lookahead scale_by_* clip_by_* add_noise trust_ratio set_to_zero conditionally_*"),
        **_each(_SCHEDULE, "sgdr_schedule cosine_onecycle_schedule linear_onecycle_schedule warmup_* *_schedule"),
        **_each("it is volta.tree.map(lambda a, b: a + t * (b - a), old, new)", "incremental_update periodic_update"),
        **_each("optimizers are made by functions: volta.optim.adam(1e-3)", "Adam AdamW SGD RMSprop Adagrad Lion"),
        "losses": "losses are in volta.nn: volta.nn.softmax_cross_entropy, volta.nn.squared_error",
        "tree_utils": "they are volta.tree.map and its like",
    },
    "volta.tree_util": _each(
        "it is volta.tree_util.tree_flatten with is_leaf",
        "default_registry KeyEntry",
    ),
    "volta.tree": {},
    "volta.io": {
        **_each("a pytree is a file: volta.io.save(path, tree), volta.io.load(path)", "loadz savez dump dumps loads"),
    },
}

_AXIS = "sum over the named axis inside: volta.lax.psum(x, name)"
_SHARDED = "it is in_shardings and out_shardings, of volta.sharding.NamedSharding"
_PLACED = "a jitted call runs where its arguments are: volta.device_put(x, 'cuda:0')"

KEYWORDS: dict[str, dict[str, str]] = {
    "jit": {
        **_each(_PLACED, "backend device"),
        **_each(_SHARDED, "in_axis_resources out_axis_resources axis_resources"),
        "abstracted_axes": _SHAPES,
        "compiler_options": "volta.execution_context(level=..., options=...) holds what a compilation is for",
    },
    "vmap": {
        "sum_match": "sum over the mapped axis outside of vmap",
    },
    "checkpoint": {
        "concrete": "mark settings with static_argnums",
    },
    **{name: {"reduce_axes": _AXIS} for name in ("grad", "value_and_grad", "vjp")},
    **{name: {"allow_int": _INTEGERS} for name in ("jacfwd", "jacrev", "hessian")},
    "make_jaxpr": {"abstracted_axes": _SHAPES},
}
