"""Measures the scalar functions: errors in ULP and digests of the results, over all 2^32 float32 inputs.

float32: every input (or every STRIDE-th), the error against a float64 oracle, and the SHA-256 of the results in the
order of the inputs' bits, all NaNs made one. float64: errors on samples against mpmath. Records are merged into
volta/verify/digests/float32.json and float64.json.

    python scripts/ulp.py --function exp log        # 2^32 inputs each, about a minute a function
    python scripts/ulp.py --stride 4099 --dry-run   # a quick look at all of them
    python scripts/ulp.py --dtype float64
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import scipy.special
from llvmlite import ir

from volta.core import contract
from volta.emit import builder as emit
from volta.numba_cpu import target
from volta.ops import scalar

DIGESTS = Path(__file__).resolve().parent.parent / "volta" / "verify" / "digests"
QUICK_STRIDE = 65537
LANES = 16

# float64 oracles of the float32 functions.
ORACLES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cos": np.cos,
    "cosh": np.cosh,
    "digamma": scipy.special.digamma,
    "erf": scipy.special.erf,
    # SciPy's takes two hours; the float64 one is measured below.
    "erf_inv": lambda x: compile_unary("erf_inv", "float64")(x),
    "erfc": scipy.special.erfc,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "lgamma": lambda x: np.where(x == -np.inf, np.inf, scipy.special.gammaln(x)),  # C's at minus infinity
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "logistic": scipy.special.expit,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


class Compiled:
    """A scalar function `f(b, *values)` compiled into a loop over arrays."""

    def __init__(self, function: Callable[..., Any], in_dtypes: Sequence[str], out_dtype: str, lanes: int) -> None:
        module = ir.Module("scalar")
        pointer, word = ir.PointerType(), ir.IntType(64)
        n_in = len(in_dtypes)
        kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer] * (n_in + 1) + [word]), "kernel")
        irb = ir.IRBuilder(kernel.append_basic_block("entry"))
        loop, end, entry = kernel.append_basic_block("loop"), kernel.append_basic_block("end"), irb.block
        irb.cbranch(irb.icmp_signed(">", kernel.args[-1], word(0)), loop, end)
        irb.position_at_end(loop)
        i = irb.phi(word)
        i.add_incoming(word(0), entry)
        b = emit.Builder(irb, lanes)

        def at(k: int, dtype: str) -> ir.Value:
            step = irb.mul(i, word(emit.item_size(dtype)))
            return irb.gep(kernel.args[k], [step], source_etype=ir.IntType(8))

        result = function(b, *[b.load(at(k, d), d) for k, d in enumerate(in_dtypes)])
        b.store(result, at(n_in, out_dtype), out_dtype)
        following = irb.add(i, word(lanes))
        i.add_incoming(following, irb.block)
        irb.cbranch(irb.icmp_signed("<", following, kernel.args[-1]), loop, end)
        irb.position_at_end(end)
        irb.ret_void()
        self.text = str(module)
        self.in_dtypes, self.out_dtype, self.lanes = in_dtypes, out_dtype, lanes

    @functools.cached_property
    def entry(self) -> Callable[..., None]:
        self.code = target.MachineCode([target.compile_object(self.text)], ["kernel"])
        address = self.code.addresses["kernel"]
        return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(self.in_dtypes) + 1), ctypes.c_int64)(address)

    def assembly(self) -> str:
        return target.assembly(self.text)

    def run(self, arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Fill `out`; the length must be a multiple of the lanes."""
        assert out.size % self.lanes == 0
        self.entry(*[a.ctypes.data for a in arrays], out.ctypes.data, out.size)

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        """The function of arrays of any (equal) length; half kinds are given and returned as uint16."""
        size = arrays[0].size
        padded_size = -(-size // self.lanes) * self.lanes
        inputs = []
        for array, dtype in zip(arrays, self.in_dtypes, strict=True):
            padded = np.ones(padded_size, _memory_dtype(dtype))
            padded[:size] = array
            inputs.append(padded)
        out = np.empty(padded_size, _memory_dtype(self.out_dtype))
        self.run(inputs, out)
        return out[:size]


def _memory_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype in emit.HALF_DTYPES else dtype)


def canonical(b: Any, y: Any) -> Any:
    """All NaNs made one. By their bits: LLVM drops a select between NaNs."""
    kind, sign, infinity = {
        "float32": ("int32", 0x7FFFFFFF, 0x7F800000), "float64": ("int64", (1 << 63) - 1, 0x7FF << 52),
    }[y.dtype]  # fmt: skip
    is_nan = (b.bitcast(y, kind) & sign) > infinity
    return b.select(is_nan, b.bitcast(b.const(kind, contract.NAN_BITS[y.dtype]), y.dtype), y)


def error_in_ulp(b: Any, y: Any, reference: Any) -> Any:
    """The distance of a float32 from the float64 it should be, in ULP of float32 there; infinite if wrong in kind."""
    near = b.cast(reference, "float32")
    bits = b.bitcast(abs(reference), "int64") & (0x7FF << 52)
    unit = b.bitcast(b.max(bits, (1023 - 126) << 52) - (23 << 52), "float64")
    distance = abs(b.cast(y, "float64") - reference) / unit
    overflow = (abs(near) == float("inf")) & (abs(y) == 3.4028234663852886e38)
    ordinary = b.is_finite(y) & b.is_finite(near)
    alike = (y == near) | (b.isnan(y) & b.isnan(near))
    odd = b.select(alike, b.const("float64", 0.0), b.select(overflow, b.const("float64", 1.0), float("inf")))
    both_zero = (y == 0.0) & (near == 0.0)
    sign_lost = both_zero & (b.bitcast(y, "int32") != b.bitcast(near, "int32"))
    error = b.select(ordinary, distance, odd)
    return b.cast(b.select(sign_lost, float("inf"), error), "float32")


@functools.cache
def compile_unary(name: str, dtype: str = "float32") -> Compiled:
    """The function `name` of the scalar library with canonical NaNs."""
    function = getattr(scalar, name)
    return Compiled(lambda b, x: canonical(b, function(b, x)), [dtype], dtype, LANES if dtype == "float32" else 8)


def digest(name: str, stride: int) -> str:
    """SHA-256 of the float32 results for every `stride`-th input."""
    compiled, result = compile_unary(name), hashlib.sha256()
    for x in inputs(stride):
        result.update(compiled(x).tobytes())
    return result.hexdigest()


def inputs(stride: int, chunk: int = 1 << 15) -> Any:
    """The float32 values of every `stride`-th bit pattern, in chunks."""
    for start in range(0, 1 << 32, stride * chunk):
        stop = min(1 << 32, start + stride * chunk)
        yield np.arange(start, stop, stride, dtype=np.uint64).astype(np.uint32).view(np.float32)


def measure_float32(name: str, stride: int) -> dict[str, Any]:
    """The largest error, where it is, how many results are not correctly rounded, and the digest."""
    compiled = compile_unary(name)
    error_of = Compiled(error_in_ulp, ["float32", "float64"], "float32", LANES)
    digest_all = hashlib.sha256()
    worst, at, rounded_wrong = -1.0, 0.0, 0
    for x in inputs(stride):
        y = compiled(x)
        digest_all.update(y.tobytes())
        with np.errstate(all="ignore"):
            errors = error_of(y, ORACLES[name](x.astype(np.float64)))
        rounded_wrong += int((errors > 0.5).sum())
        i = int(errors.argmax())
        if errors[i] > worst:
            worst, at = float(errors[i]), float(x[i])
    return {
        "max_ulp": round(worst, 4),
        "at": repr(np.float32(at).item()),
        "not_correctly_rounded": rounded_wrong,
        "sha256": digest_all.hexdigest(),
    }


REGIONS: dict[str, list[tuple[float, float]]] = {
    "acos": [(-1, 1), (0.9999, 1)],
    "acosh": [(1, 1.01), (1, 10), (1, 1e20)],
    "asin": [(-1, 1), (0.9999, 1), (-1e-5, 1e-5)],
    "atanh": [(-1, 1), (0.9999, 1), (-1e-5, 1e-5)],
    "digamma": [(0.01, 10), (1.4, 1.5), (1, 1e10)],
    "erf_inv": [(-1, 1), (0.999, 1), (-1e-5, 1e-5)],
    "erfc": [(-6, 6), (-0.5, 2), (0, 26.5)],
    "exp": [(-745, 709), (-1, 1), (-1e-5, 1e-5)],
    "exp2": [(-1074, 1023), (-1, 1)],
    "expm1": [(-40, 709), (-1, 1), (0.2, 0.5), (-1e-5, 1e-5)],
    "cosh": [(-710, 710), (-2, 2)],
    "sinh": [(-710, 710), (-2, 2), (-1e-5, 1e-5)],
    "lgamma": [(0.01, 10), (0.9, 1.1), (1.9, 2.1), (1, 1e10)],
    "log": [(0, 10), (0.5, 2), (0.99, 1.01), (0, 1e300)],
    "log2": [(0, 10), (0.5, 2), (0.99, 1.01), (0, 1e300)],
    "log10": [(0, 10), (0.5, 2), (0.99, 1.01), (0, 1e300)],
    "log1p": [(-1, 1), (-0.5, 1), (-1e-5, 1e-5), (0, 1e300)],
    "cos": [(-10, 10), (1.57, 1.5708), (-1e5, 1e5), (-1e300, 1e300)],
    "sin": [(-10, 10), (3.1415, 3.1416), (-1e5, 1e5), (-1e300, 1e300)],
    "tan": [(-10, 10), (1.57, 1.5708), (-1e5, 1e5), (-1e300, 1e300)],
}
EXACT: dict[str, Callable[..., Any]] = {
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "erf_inv": mp.erfinv,
    "exp2": lambda x: mp.mpf(2) ** x,
    "lgamma": lambda x: mp.re(mp.loggamma(x)),
    "log2": lambda x: mp.log(x, 2),
    "log10": mp.log10,
    "logistic": lambda x: 1 / (1 + mp.exp(-x)),
    "rsqrt": lambda x: 1 / mp.sqrt(x),
}


def error_float64(y: float, exact: Any) -> float:
    """The distance of a float64 from an mpmath number, in ULP of float64 there."""
    if exact == 0:
        return 0.0 if y == 0 else float("inf")
    exponent = max(int(mp.floor(mp.log(abs(exact), 2))), -1022)
    return float(abs(mp.mpf(y) - exact) / mp.mpf(2) ** (exponent - 52))


def measure_float64(name: str, samples: int) -> dict[str, Any]:
    """The largest error on samples of each region, and where it is."""
    compiled = compile_unary(name, "float64")
    exact_of = EXACT.get(name) or getattr(mp, name)
    generator = np.random.default_rng(0)
    worst, at = -1.0, 0.0
    positive = name in ("rsqrt", "sqrt")
    with mp.workprec(400):
        for low, high in REGIONS.get(name, [(-30, 30), (-2, 2), (-1e-5, 1e-5)]):
            x = generator.uniform(max(low, 0) if positive else low, high, samples)
            if high == 1e300:
                x = np.copysign(10.0 ** generator.uniform(-300, 300, samples), x if low < 0 else 1.0)
            for value, y in zip(x.tolist(), compiled(x).tolist(), strict=True):
                with mp.workprec(1300 if high == 1e300 else 400):
                    error = error_float64(y, exact_of(mp.mpf(value)))
                if not error <= worst:
                    worst, at = error, value
    return {"max_ulp": round(worst, 4), "at": repr(at), "samples": samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--function", nargs="*", help="names (default: all)")
    parser.add_argument("--stride", type=int, default=1, help="take every STRIDE-th input")
    parser.add_argument("--samples", type=int, default=2000, help="float64: inputs in each region")
    parser.add_argument("--dry-run", action="store_true", help="do not write the records")
    options = parser.parse_args()
    path = DIGESTS / f"{options.dtype}.json"
    for name in options.function or [n for n in ORACLES if hasattr(scalar, n)]:
        start = time.perf_counter()
        if options.dtype == "float32":
            record = measure_float32(name, options.stride)
            if options.stride == 1:
                record["sha256_every_65537"] = digest(name, QUICK_STRIDE)
        else:
            record = measure_float64(name, options.samples)
        print(f"{name}: {record} ({time.perf_counter() - start:.1f} s)", flush=True)
        if not options.dry_run and options.stride == 1:
            records = json.loads(path.read_text()) if path.exists() else {"contract": contract.NAME, "functions": {}}
            records["functions"][name] = record
            records["functions"] = dict(sorted(records["functions"].items()))
            path.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
