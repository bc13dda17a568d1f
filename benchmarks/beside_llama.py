"""A decoder from one GGUF file beside llama-cpp-python: tokens a second of prompts and of decoding, on the CPU.

    python benchmarks/beside_llama.py [--json record.json] [--threads 1 2] [--prompt 128] [--tokens 32]

The file is written first: random weights of a model's shape (1.1 billion parameters where nothing else is said) in the
formats that llama.cpp gives them as Q4_K_M, Q6_K for the output and half of the values' and down products. Both run in
one process, in turns that change their order; each lays weights out anew when it loads them, for its own products.
Volta's are strict: float32 numbers, each sum in the order of the contract. llama.cpp rounds activations to 8 bits and
multiplies integers, which is less work: how far its logits are from Volta's is printed as well.
"""

import argparse
import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import volta
from benchmarks import harness
from benchmarks.decode import blocks
from volta import models
from volta.core.block_formats import FORMATS
from volta.models.decoder import apply

PACKAGE = "llama_cpp"
SHAPE = {"layers": 22, "width": 2048, "heads": 32, "key_heads": 4, "hidden": 5632, "vocabulary": 32000}
CONTEXT = 512


def more_bits(layer, layers):
    """Whether llama.cpp gives a layer's values and down product Q6_K in Q4_K_M."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def weights(name, rows, columns, rng):
    """Random blocks whose numbers have a mean of about 0 and a variance of about 1 / columns, so that a model of them
    has neither large nor small activations."""
    import gguf

    fmt = FORMATS[name]
    packed = np.array(blocks(name, rows, columns, rng).packed).reshape(rows, -1, fmt.nbytes)

    def scaled(by):
        for halves, number in ((fmt.scale, by), (fmt.offset, 7.5 * by)):  # 7.5: the mean of four bits
            if halves is not None:
                packed[..., halves.at : halves.at + 2] = np.frombuffer(np.float16(number).tobytes(), np.uint8)
        return packed.reshape(rows, -1)

    numbers = gguf.quants.dequantize(scaled(2**-6)[: 1 + 4096 // columns], gguf.GGMLQuantizationType[name])
    return scaled(2**-6 / numbers.std() / math.sqrt(columns))


def write(path, o, seed=0):
    """A file of the shape `o`; the layers of one format share their random bytes."""
    import gguf

    rng, writer = np.random.default_rng(seed), gguf.GGUFWriter(path, "llama")
    writer.add_block_count(o["layers"])
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(o["width"])
    writer.add_feed_forward_length(o["hidden"])
    writer.add_head_count(o["heads"])
    writer.add_head_count_kv(o["key_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(o["width"] // o["heads"])
    writer.add_vocab_size(o["vocabulary"])
    writer.add_tokenizer_model("none")
    made = {}

    def put(name, rows, columns, fmt="Q4_K"):
        if (rows, columns, fmt) not in made:
            made[rows, columns, fmt] = weights(fmt, rows, columns, rng)
        writer.add_tensor(name, made[rows, columns, fmt], raw_dtype=gguf.GGMLQuantizationType[fmt])

    width, keys = o["width"], o["width"] // o["heads"] * o["key_heads"]
    put("token_embd.weight", o["vocabulary"], width)
    put("output.weight", o["vocabulary"], width, "Q6_K")
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(o["layers"]):
        dear = "Q6_K" if more_bits(i, o["layers"]) else "Q4_K"
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(width, np.float32))
        put(f"blk.{i}.attn_q.weight", width, width)
        put(f"blk.{i}.attn_k.weight", keys, width)
        put(f"blk.{i}.attn_v.weight", keys, width, dear)
        put(f"blk.{i}.attn_output.weight", width, width)
        put(f"blk.{i}.ffn_gate.weight", o["hidden"], width)
        put(f"blk.{i}.ffn_up.weight", o["hidden"], width)
        put(f"blk.{i}.ffn_down.weight", width, o["hidden"], dear)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Volta:
    def __init__(self, path, clock):
        self.model, self.clock = models.load(path, interleave=True), clock

    def run(self, prompt, count, threads):
        """Seconds of the prompt, its first token included, and of each token after it."""
        volta.set_num_threads(threads)
        begin = self.clock()
        made = models.generate(self.model, prompt, max_tokens=count + 1)
        next(made)
        first = self.clock()
        for _ in made:
            pass
        return first - begin, (self.clock() - first) / count

    def logits(self, prompt):
        config, params = self.model.config, self.model.params
        step = volta.jit(lambda params, *rest: apply(config, params, *rest)[0])
        given = np.array([prompt], np.int32), self.model.caches(1, len(prompt)), np.array([0])
        return np.asarray(step(params, *given, np.array([len(prompt) - 1])))[0]


class LlamaCpp:
    def __init__(self, path, clock, threads):
        import llama_cpp

        self.package, self.clock = llama_cpp, clock
        self.models = {
            n: llama_cpp.Llama(path, n_ctx=CONTEXT, n_threads=n, n_threads_batch=n, n_batch=CONTEXT, verbose=False)
            for n in threads
        }

    def run(self, prompt, count, threads):
        llama = self.models[threads]
        llama.reset()
        begin = self.clock()
        llama.eval(prompt)
        token = int(np.argmax(self._last(llama)))
        first = self.clock()
        for _ in range(count):
            llama.eval([token])
            token = int(np.argmax(self._last(llama)))
        return first - begin, (self.clock() - first) / count

    def logits(self, prompt):
        llama = next(iter(self.models.values()))
        llama.reset()
        llama.eval(prompt)
        return np.array(self._last(llama))

    def _last(self, llama):
        """Logits after the last token, where llama.cpp has them."""
        return np.ctypeslib.as_array(self.package.llama_get_logits_ith(llama.ctx, -1), (llama.n_vocab(),))


def measure(sides, threads, options):
    """Least and median seconds of a prompt and of a token, by side."""
    prompt = [1 + i % 97 for i in range(options.prompt)]
    taken = {name: [] for name in sides}
    for turn in range(options.rounds + 1):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            time.sleep(harness.SETTLE)
            found = sides[name].run(prompt, options.tokens, threads)
            if turn:  # the first one compiles, and reads the file
                taken[name].append(found)
    return {
        name: {
            what: {"min": min(s), "median": statistics.median(s)}
            for what, s in zip(("prompt", "token"), zip(*samples, strict=True), strict=True)
        }
        for name, samples in taken.items()
    }


def show(record):
    """A table: tokens a second, and Volta's as a share of llama.cpp's."""
    rows = []
    for threads, found in record["threads"].items():
        for what, tokens in (("prompt", record["prompt"]), ("token", 1)):
            for kind in ("min", "median"):
                rates = [tokens / found[name][what][kind] for name in ("volta", PACKAGE) if name in found]
                ratio = f"{rates[0] / rates[1]:.2f}" if len(rates) > 1 else "-"
                rows.append([f"{what}, {threads} threads, {kind}", *(f"{r:.1f}" for r in rates), ratio])
    return harness.table(["tokens/s", *found, "volta/llama.cpp"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in SHAPE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens that are decoded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="one thread, by its processor's time: on a busy machine")
    parser.add_argument("--json", help="where to write the record")
    options = parser.parse_args()
    options.threads = [1] if options.busy else options.threads
    shape = {name: getattr(options, name) for name in SHAPE}
    there = importlib.util.find_spec(PACKAGE) is not None
    if not there:
        print("llama-cpp-python is not installed: Volta's figures stand alone")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        write(path, shape)
        size = os.path.getsize(path)
        clock = time.thread_time if options.busy else time.perf_counter
        sides = {"volta": Volta(path, clock)} | ({PACKAGE: LlamaCpp(path, clock, options.threads)} if there else {})
        record = {"shape": shape, "bytes": size, "prompt": options.prompt, "tokens": options.tokens, "threads": {}}
        record["clock"] = "processor" if options.busy else "wall"
        print(f"{size / 1e9:.2f} GB, a prompt of {options.prompt} tokens, {options.tokens} more", flush=True)
        if there:
            own, other = (side.logits(list(range(1, 33))) for side in sides.values())
            record["logits"] = {"correlation": float(np.corrcoef(own, other)[0, 1])}
            print(f"logits after 32 tokens: correlation with llama.cpp's {record['logits']['correlation']:.4f}")
        for threads in options.threads:
            record["threads"][str(threads)] = measure(sides, threads, options)
        print(show(record))
    if options.json:
        record["machine"] = harness.machine(max(options.threads))
        harness.save(Path(options.json), record)


if __name__ == "__main__":
    main()
