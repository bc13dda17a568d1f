"""A model of GPT-2's shape from transformers' files, and what its parts are: logits by hand, then token by token.

    python examples/gpt2.py [--model folder] [--prompt 1 2 3] [--tokens 16]

Without a folder it writes a small one of random weights first, as transformers' ``save_pretrained`` does: config.json
and model.safetensors.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import volta
import volta.numpy as vnp
from volta import io, models

VOCABULARY, WIDTH, LAYERS, HEADS, CONTEXT = 256, 64, 2, 4, 128


def write_small_model(folder, seed=0):
    """Random weights under transformers' names; its products lie as (inputs, outputs)."""
    rng = np.random.default_rng(seed)
    config = {"model_type": "gpt2", "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config))

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.float32(shape[0]))

    arrays = {"wte.weight": normal(VOCABULARY, WIDTH), "wpe.weight": normal(CONTEXT, WIDTH)}
    sizes = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH)}
    sizes |= {"mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
    for i in range(LAYERS):
        for name, shape in sizes.items():
            arrays |= {f"h.{i}.{name}.weight": normal(*shape), f"h.{i}.{name}.bias": np.zeros(shape[1], np.float32)}
    for name in [f"h.{i}.ln_{n}" for i in range(LAYERS) for n in (1, 2)] + ["ln_f"]:
        arrays |= {f"{name}.weight": np.ones(WIDTH, np.float32), f"{name}.bias": np.zeros(WIDTH, np.float32)}
    io.save(folder / "model.safetensors", arrays)  # which other programs read as any safetensors file


def most_probable(model, tokens, count):
    """The continuation by hand: the prompt at once, then a token at a time, through caches of keys and values."""
    step = volta.jit(lambda params, tokens, caches, start: models.Decoder(model.config, params)(tokens, caches, start))
    caches, at, text = model.caches(1, CONTEXT), 0, list(tokens)
    new = np.array([text])
    for _ in range(count):
        logits, caches = step(model.params, new, caches, np.array([at]))
        at += new.shape[1]
        text.append(int(vnp.argmax(logits[0, -1])))
        new = np.array([text[-1:]])
    return text[len(tokens) :]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder of transformers; a small one of random weights where not given")
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 2, 3, 5, 8, 13])
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            write_small_model(Path(folder))
        model = models.load(options.model or folder)
        print(model)
        text = []
        for token in models.generate(model, options.prompt, max_tokens=options.tokens):
            print(token, end=" ", flush=True)
            text.append(token)
        equal = text == most_probable(model, options.prompt, options.tokens)
        print(f"\nby hand the same tokens: {equal}")
        return text, equal


if __name__ == "__main__":
    main()
