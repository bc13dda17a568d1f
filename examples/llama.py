"""A model of Llama's shape from a GGUF file, token by token: at once, in pieces and beside strangers, the same bits.

    python examples/llama.py [--model model.gguf] [--prompt 1 2 3] [--tokens 16] [--temperature 0.8] [--seed 0]

Without a file it writes a small one of random weights first, in the layout of llama.cpp's converter: products in blocks
of 8 bits (Q8_0), norms in float32. Prompts are numbers of tokens; what they stand for, a tokenizer knows.
"""

import argparse
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np

from volta import models, nn, random

VOCABULARY, WIDTH, LAYERS, HEADS, KEY_HEADS, HIDDEN, CONTEXT = 256, 128, 2, 4, 2, 256, 512


def write_small_model(path, seed):
    """A file of random weights with the names, shapes and metadata of a converted Llama model."""
    rng, q8 = np.random.default_rng(seed), gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)

    def matrix(name, outputs, inputs):
        numbers = rng.standard_normal((outputs, inputs)).astype(np.float32) / np.sqrt(np.float32(inputs))
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(numbers, q8), raw_dtype=q8)

    def norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    matrix("token_embd", VOCABULARY, WIDTH)
    matrix("output", VOCABULARY, WIDTH)
    norm("output_norm")
    for i in range(LAYERS):
        norm(f"blk.{i}.attn_norm")
        norm(f"blk.{i}.ffn_norm")
        for name, outputs in (("q", WIDTH), ("k", WIDTH * KEY_HEADS // HEADS), ("v", WIDTH * KEY_HEADS // HEADS)):
            matrix(f"blk.{i}.attn_{name}", outputs, WIDTH)
        matrix(f"blk.{i}.attn_output", WIDTH, WIDTH)
        matrix(f"blk.{i}.ffn_gate", HIDDEN, WIDTH)
        matrix(f"blk.{i}.ffn_up", HIDDEN, WIDTH)
        matrix(f"blk.{i}.ffn_down", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a GGUF file; a small one of random weights where not given")
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 2, 3, 5, 8, 13])
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or str(Path(folder) / "model.gguf")
        if options.model is None:
            write_small_model(path, options.seed)
        return run(models.load(path), options)


def run(model, options):
    """Print a text as it is made, then make it again in other ways; returns it, and whether all are equal."""
    print(model)
    asked = {
        "prompt": options.prompt, "max_tokens": options.tokens, "key": random.key(options.seed),
        "sampling": nn.Sampling(temperature=options.temperature, top_k=40, top_p=0.95),
    }  # fmt: skip
    text, begin = [], time.perf_counter()
    for token in models.generate(model, **asked):
        print(token, end=" ", flush=True)
        text.append(token)
    print(f"\n{len(text)} tokens in {time.perf_counter() - begin:.2f} s, compiling included")
    in_pieces = list(models.generate(model, **asked, piece=2))
    batch = models.Batch(model, rows=2)
    strangers = [batch.add(options.prompt[:n], max_tokens=3 * n) for n in (1, 2)]
    request = batch.add(**asked)
    for _ in batch.run():
        pass
    equal = text == in_pieces == request.tokens
    print(f"in pieces, and beside {len(strangers)} strangers, the same tokens: {equal}")
    return text, equal


if __name__ == "__main__":
    main()
