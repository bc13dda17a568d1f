"""Decoding with weights in blocks of few bits: what a token costs, and how fast weights are read.

    python benchmarks/decode.py [--device cuda] [--format Q4_K] [--layers 22 --width 2048 ...]

Random weights of a model's shape (of 1.1 billion parameters where nothing else is said) in a format, with --float32 in
that too. A token reads all weights but the embedding once. On a GPU products are compared with the CPU's to the last
bit besides.
"""

import argparse
import functools
import math
import time

import numpy as np

import volta
import volta.numpy as vnp
from volta import models, nn, random, tree
from volta.core.block_formats import FORMATS
from volta.models.decoder import apply
from volta.runtime import devices


def blocks(name, rows, columns, rng):
    """Random blocks with scales of about 1 / 100."""
    fmt = FORMATS[name]
    packed = rng.integers(0, 256, (rows, columns // fmt.elements, fmt.nbytes), dtype=np.uint8)
    for halves in (fmt.scale, fmt.offset):
        if halves is not None:
            numbers = (rng.standard_normal((*packed.shape[:2], 1)) / 2000).astype(np.float16)
            packed[..., halves.at : halves.at + 2] = numbers.view(np.uint8)
    return nn.QuantizedArray(packed.reshape(rows, -1), name)


def model(options, make):
    """A decoder of Llama's shape; ``make`` gives a product's weights, of so many outputs and inputs."""
    o, size = options, options.width // options.heads
    norm = {"scale": vnp.ones(o.width)}

    def layer():
        sizes = {"q": (o.width, o.width), "k": (o.key_heads * size, o.width), "v": (o.key_heads * size, o.width)}
        sizes |= {"out": (o.width, o.width), "gate": (o.hidden, o.width), "up": (o.hidden, o.width)}
        sizes |= {"down": (o.width, o.hidden)}
        return {"norm1": norm, "norm2": norm} | {name: {"weight": make(*s)} for name, s in sizes.items()}

    params = {"embedding": make(o.vocabulary, o.width), "output": make(o.vocabulary, o.width), "norm": norm}
    config = models.Config(o.vocabulary, o.width, o.layers, o.heads, o.key_heads, size, o.hidden, 2048)
    return models.Decoder(config, params | {"layers": [layer() for _ in range(o.layers)]})


def measure(what, decoder, options):
    """Seconds of a token, the best of several, and the bytes that it reads."""
    made = models.generate(decoder, list(range(1, 65)), max_tokens=options.tokens + 4)
    next(made), next(made)  # which compile
    seconds = []
    for _ in range(options.tokens):
        begin = time.perf_counter()
        next(made)
        seconds.append(time.perf_counter() - begin)
    nbytes = sum(x.nbytes for name, x in decoder.params.items() for x in tree.leaves(x) if name != "embedding")
    best = min(seconds)
    if options.profile:
        with devices.profile() as found:
            next(made)
        print(found.table(options.profile), flush=True)
    print(f"{what}: {1e3 * best:.2f} ms a token, {1 / best:.1f} tokens/s, {nbytes / best / 1e9:.1f} GB/s", flush=True)


def prefill(what, decoder, options):
    """Seconds in which a prompt is taken at once, the best of several, and the rate of its products."""
    rows, config = options.prefill, decoder.config
    step = volta.jit(lambda params, *rest: apply(config, params, *rest)[0])
    given = np.arange(1, rows + 1, dtype=np.int32)[None] % config.vocabulary, decoder.caches(1, rows), np.array([0])
    given = tree.map(lambda x: volta.device_put(x, options.device), (*given, np.array([rows - 1])))
    seconds = []
    for _ in range(4):
        begin = time.perf_counter()
        step(decoder.params, *given).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    layers = decoder.params["layers"]
    numbers = sum(math.prod(p["weight"].shape) for layer in layers for p in layer.values() if "weight" in p)
    best = min(seconds[1:])
    text = f"{1e3 * best:.1f} ms, {rows / best:.0f} tokens/s, {2e-12 * numbers * rows / best:.1f} TFLOP/s"
    print(f"{what}: a prompt of {rows} tokens in {text}", flush=True)


def copy_speed():
    """Bytes a second that a plain copy reads and writes."""
    x, add = vnp.zeros(1 << 27), volta.jit(lambda x: x + 1)
    add(x).block_until_ready()
    begin = time.perf_counter()
    for _ in range(10):
        y = add(x)
    y.block_until_ready()
    return 2 * 10 * x.nbytes / (time.perf_counter() - begin)


def differing(options, rng):
    """Elements of products on the GPU that are not the CPU's, by format."""
    for name in options.compare:
        for rows, outputs, inputs in ((1, 1000, 2048), (5, 70, 512), (40, 100, 512), (1, 64, 8192)):
            w, x = blocks(name, outputs, inputs, rng), rng.standard_normal((rows, inputs)).astype(np.float32)
            there = nn.linear(*tree.map(lambda a: volta.device_put(a, options.device), (x, w)))
            here = nn.linear(*tree.map(lambda a: volta.device_put(a, "cpu"), (x, w)))
            count = int((np.asarray(there).view("u4") != np.asarray(here).view("u4")).sum())
            print(f"{name} {rows} x {inputs} x {outputs}: {count} elements differ", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--format", default="Q4_K", choices=FORMATS)
    shape = {"layers": 22, "width": 2048, "heads": 32, "key_heads": 4, "hidden": 5632, "vocabulary": 32000}
    for name, default in (shape | {"tokens": 16}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--compare", nargs="*", default=list(FORMATS), help="formats whose products are compared")
    parser.add_argument("--prefill", type=int, default=0, help="a prompt of so many tokens as well")
    parser.add_argument("--profile", type=int, default=0, help="print so many of a token's kernels by time (CUDA)")
    parser.add_argument("--float32", action="store_true", help="the same shape in float32 too")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with volta.default_device(options.device):
        if options.device != "cpu":
            differing(options, rng)
        print(f"a copy reads and writes {copy_speed() / 1e9:.1f} GB/s on {options.device}", flush=True)
        put = lambda x: volta.device_put(x, options.device)  # noqa: E731
        made = functools.cache(lambda *s: blocks(options.format, *s, rng))  # layers have the same bits, each its memory
        decoder = model(options, lambda *s: tree.map(put, made(*s)))
        measure(options.format, decoder, options)
        if options.prefill:
            prefill(options.format, decoder, options)
            with volta.execution_context(level="device"), volta.default_matmul_precision("bf16"):
                prefill(f"{options.format}, bfloat16 at level device", decoder, options)
        if options.float32:
            keys = iter(random.split(random.key(0), 8 * options.layers + 2))
            measure("float32", model(options, lambda *s: put(random.normal(next(keys), s) / 64)), options)


if __name__ == "__main__":
    main()
