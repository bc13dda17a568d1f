"""Small random models in files as llama.cpp and transformers lay them out, and what they compute, in plain NumPy."""

import json

import gguf
import numpy as np
from safetensors.numpy import save_file

TYPES = gguf.GGMLQuantizationType
SIZES = {
    "vocabulary": 61, "width": 64, "layers": 2, "heads": 4, "key_heads": 2, "head_size": 16, "hidden": 96,
    "context": 64,
}  # fmt: skip


def weights(kind, seed=0, biases=()):
    """All numbers of a model: {name: array}, products as (outputs, inputs)."""
    rng, s = np.random.default_rng(seed), SIZES
    key_heads = s["key_heads"] if kind == "llama" else s["heads"]
    q, k = s["heads"] * s["head_size"], key_heads * s["head_size"]
    shapes = {"q": (q, s["width"]), "k": (k, s["width"]), "v": (k, s["width"]), "out": (s["width"], q)}
    shapes |= {"up": (s["hidden"], s["width"]), "down": (s["width"], s["hidden"])}
    shapes |= {"gate": (s["hidden"], s["width"])} if kind == "llama" else {}
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    found = {"embedding": normal(s["vocabulary"], s["width"]) / 8, "norm": 1 + normal(s["width"]) / 10}
    found |= {"output": normal(s["vocabulary"], s["width"]) / 8}
    if kind == "gpt2":
        found |= {"positions": normal(s["context"], s["width"]) / 8, "norm.bias": normal(s["width"]) / 10}
    for i in range(s["layers"]):
        for name, shape in shapes.items():
            found[f"{i}.{name}"] = normal(*shape) / np.float32(np.sqrt(shape[1]))
            if kind == "gpt2" or name in biases:
                found[f"{i}.{name}.bias"] = normal(shape[0]) / 10
        for name in ("norm1", "norm2"):
            found[f"{i}.{name}"] = 1 + normal(s["width"]) / 10
            if kind == "gpt2":
                found[f"{i}.{name}.bias"] = normal(s["width"]) / 10
    return found


# -- what they compute -------------------------------------------------------------------------------------------------


def logits(kind, w, tokens, eps=1e-5, base=10000.0, window=None):
    """Those after each token, in float64; rotary pairs are halves of a head."""
    s, w = SIZES, {k: v.astype(np.float64) for k, v in w.items()}
    n = len(tokens)

    def linear(x, name):
        return x @ w[name].T + w.get(f"{name}.bias", 0)

    def norm(x, name):
        if kind == "gpt2":
            d = x - x.mean(-1, keepdims=True)
            return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * w[name] + w[f"{name}.bias"]
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name]

    def turned(x):
        half = s["head_size"] // 2
        angles = np.arange(n)[:, None] * base ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(x, i):
        q, k, v = (linear(x, f"{i}.{name}").reshape(n, -1, s["head_size"]) for name in "qkv")
        if kind == "llama":
            q, k = turned(q), turned(k)
        k, v = (np.repeat(y, s["heads"] // y.shape[1], axis=1) for y in (k, v))
        scores = np.einsum("tnh,snh->nts", q, k) / np.sqrt(s["head_size"])
        t, at = np.arange(n)[:, None], np.arange(n)
        seen = (at <= t) & (at > t - (window or n))
        p = np.exp(np.where(seen, scores, -np.inf) - np.where(seen, scores, -np.inf).max(-1, keepdims=True))
        y = np.einsum("nts,snh->tnh", p / p.sum(-1, keepdims=True), v)
        return linear(y.reshape(n, -1), f"{i}.out")

    def block(x, i):
        up = linear(x, f"{i}.up")
        if kind == "gpt2":
            return linear(0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3))), f"{i}.down")
        gate = linear(x, f"{i}.gate")
        return linear(gate / (1 + np.exp(-gate)) * up, f"{i}.down")

    x = w["embedding"][tokens] + (w["positions"][:n] if kind == "gpt2" else 0)
    for i in range(s["layers"]):
        x = x + attention(norm(x, f"{i}.norm1"), i)
        x = x + block(norm(x, f"{i}.norm2"), i)
    return norm(x, "norm") @ w.get("output", w["embedding"]).T


# -- files -------------------------------------------------------------------------------------------------------------

GGUF_NAMES = {
    "norm1": "attn_norm", "norm2": "ffn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "out": "attn_output",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


def interleaved(x, heads):
    """As llama.cpp's converter stores queries' and keys' weights: a head's halves pair by pair."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def write_gguf(path, kind, w, architecture=None, quantize=None, **metadata):
    """A file of a model. ``quantize``: the format of products and tables; returns what the weights are then."""
    architecture, s = architecture or kind, SIZES
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(s["layers"])
    writer.add_context_length(s["context"])
    writer.add_embedding_length(s["width"])
    writer.add_feed_forward_length(s["hidden"])
    writer.add_head_count(s["heads"])
    if kind == "llama":
        writer.add_head_count_kv(s["key_heads"])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(s["head_size"])
    else:
        writer.add_layer_norm_eps(1e-5)
    for key, value in metadata.items():
        getattr(writer, f"add_{key}")(value)
    kept = {}

    def put(name, own, rearranged=lambda x: x):
        x = w[own]
        if quantize and x.ndim == 2 and own != "positions":
            packed = gguf.quants.quantize(x, quantize)
            kept[own] = gguf.quants.dequantize(packed, quantize)
            writer.add_tensor(name, rearranged(packed), raw_dtype=quantize)
        else:
            kept[own] = x
            writer.add_tensor(name, rearranged(x))

    put("token_embd.weight", "embedding")
    if "output" in w:
        put("output.weight", "output")
    put("output_norm.weight", "norm")
    if kind == "gpt2":
        put("position_embd.weight", "positions")
        put("output_norm.bias", "norm.bias")
    for i in range(s["layers"]):
        if kind == "gpt2":
            for what in ("", ".bias"):
                w[f"{i}.qkv{what}"] = np.concatenate([w[f"{i}.{n}{what}"] for n in "qkv"])
                put(f"blk.{i}.attn_qkv{what or '.weight'}", f"{i}.qkv{what}")
                kept |= dict(zip((f"{i}.{n}{what}" for n in "qkv"), np.split(kept[f"{i}.qkv{what}"], 3), strict=True))
        for own, name in GGUF_NAMES.items():
            for what in ("", ".bias"):
                if f"{i}.{own}{what}" in w and not (kind == "gpt2" and own in "qkv"):
                    heads = {"q": s["heads"], "k": s["key_heads"]}.get(own) if architecture == "llama" else None
                    change = (lambda x, heads=heads: interleaved(x, heads)) if heads else (lambda x: x)
                    put(f"blk.{i}.{name}{what or '.weight'}", f"{i}.{own}{what}", change)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


LLAMA_NAMES = {
    "norm1": "input_layernorm", "norm2": "post_attention_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "out": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}  # fmt: skip
GPT2_NAMES = {"norm1": "ln_1", "norm2": "ln_2", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}


def write_folder(folder, kind, w, files=1, **changed):
    """config.json and safetensors as transformers writes them."""
    s, arrays = SIZES, {}
    if kind == "llama":
        config = {
            "model_type": "llama", "hidden_size": s["width"], "intermediate_size": s["hidden"],
            "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "head_dim": s["head_size"],
            "num_key_value_heads": s["key_heads"], "max_position_embeddings": s["context"], "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": "output" not in w, "vocab_size": s["vocabulary"],
        }  # fmt: skip
        arrays |= {"model.embed_tokens.weight": w["embedding"], "model.norm.weight": w["norm"]}
        arrays |= {"lm_head.weight": w["output"]} if "output" in w else {}
        for i in range(s["layers"]):
            for own, name in LLAMA_NAMES.items():
                arrays[f"model.layers.{i}.{name}.weight"] = w[f"{i}.{own}"]
                if f"{i}.{own}.bias" in w:
                    arrays[f"model.layers.{i}.{name}.bias"] = w[f"{i}.{own}.bias"]
    else:
        config = {
            "model_type": "gpt2", "n_embd": s["width"], "n_layer": s["layers"], "n_head": s["heads"],
            "n_positions": s["context"], "n_inner": s["hidden"], "layer_norm_epsilon": 1e-5,
            "vocab_size": s["vocabulary"],
        }  # fmt: skip
        arrays |= {"wte.weight": w["embedding"], "wpe.weight": w["positions"]}
        arrays |= {"ln_f.weight": w["norm"], "ln_f.bias": w["norm.bias"]}
        for i in range(s["layers"]):
            for own, name in GPT2_NAMES.items():
                x = w[f"{i}.{own}"]
                arrays[f"h.{i}.{name}.weight"] = np.ascontiguousarray(x.T)
                arrays[f"h.{i}.{name}.bias"] = w[f"{i}.{own}.bias"]
            qkv = np.concatenate([w[f"{i}.{n}"] for n in "qkv"])
            arrays[f"h.{i}.attn.c_attn.weight"] = np.ascontiguousarray(qkv.T)
            arrays[f"h.{i}.attn.c_attn.bias"] = np.concatenate([w[f"{i}.{n}.bias"] for n in "qkv"])
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    names = sorted(arrays)
    if files == 1:
        save_file(arrays, folder / "model.safetensors")
        return
    placed = {name: f"model-{i % files}.safetensors" for i, name in enumerate(names)}
    for file in set(placed.values()):
        save_file({n: arrays[n] for n in names if placed[n] == file}, folder / file)
    total = {"total_size": sum(x.nbytes for x in arrays.values())}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": total, "weight_map": placed}))
