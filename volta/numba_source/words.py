"""The words that generated kernels are written in: what each means is said once here, for Numba and for Python.

`numba_words` has them as Numba functions, `cuda.words` as those of numba-cuda, `python_words` as Python functions of
NumPy scalars.
"""

from __future__ import annotations

FLOATS = ("f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")

CASTS = (*FLOATS, *INTEGERS, *UNSIGNED)
"""``i32(x)``: as a number of this kind. Integers wrap around; floats are in range where they become integers."""

MEMORY = (*FLOATS, *INTEGERS, "f16", "bf16")
"""``load_f32(address, distance)`` and ``store_f32(address, distance, x)``: an element ``distance`` bytes behind an
address. The half kinds are read as float32 and rounded where they are written."""

BITS = (*FLOATS, *INTEGERS)
"""``bits_i32(x)``: the same bits as another kind of the same width."""

ROUNDED = ("f16", "bf16")
"""``round_f16(x)``: a float32 rounded to this kind, and still a float32."""

MATH = {
    "fma": 3, "fabs": 1, "sqrt": 1, "floor": 1, "ceil": 1, "trunc": 1, "rint": 1, "copysign": 2, "ctpop": 1, "ctlz": 1,
    "cttz": 1,
}  # fmt: skip
"""Exact or correctly rounded, and so many operands: ``fma(x, y, z)`` is x * y + z with one rounding, ``rint`` goes to
the nearest even integer, ``ctpop``, ``ctlz`` and ``cttz`` count ones, and zeros in front and at the end."""

OTHER = ("bits_of_f16", "f16_of_bits", "fence", "where", "quotient", "run_kernel", "njit", "np", "nan", "inf")
"""``bits_of_f16(x)`` are a float32's bits as float16, ``f16_of_bits`` is the way back; ``where(c, x, y)`` is x where c
holds, else y; ``quotient(x, y)`` of signed integers goes towards zero; ``run_kernel(address, args, first, begin, end,
scratch)`` runs another kernel on the args from word ``first`` on."""

WORDS = frozenset(
    [
        *CASTS,
        *(f"{way}_{kind}" for way in ("load", "store") for kind in MEMORY),
        *(f"bits_{kind}" for kind in BITS),
        *(f"round_{kind}" for kind in ROUNDED),
        *MATH,
        *OTHER,
    ]
)

ON_GRIDS = WORDS - {"njit", "run_kernel"} | {"cuda", "cuda_jit"}
"""The words of kernels for GPUs: no kernel runs another there, and ``cuda`` is Numba's, with threads and local memory;
``cuda_jit`` is ``cuda.jit`` that contracts nothing."""
