"""Decoders from files: GGUF as llama.cpp writes it, safetensors in folders as transformers does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

import volta.numpy as vnp
from volta import io
from volta.api.jit import jit
from volta.core.array import Array
from volta.core.errors import FormatError
from volta.models.decoder import Config, Decoder
from volta.nn.quantized import QuantizedArray
from volta.nn.rotary import rotary_frequencies

_KINDS = {"llama": "llama", "mistral": "llama", "qwen2": "llama", "qwen3": "llama", "gpt2": "gpt2"}
"""Architectures by the names that files give them, and the shape that each has."""

_GGUF = {
    "norm1": "attn_norm", "norm2": "ffn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "out": "attn_output",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
}  # fmt: skip
_LLAMA = {
    "norm1": "input_layernorm", "norm2": "post_attention_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
    "v": "self_attn.v_proj", "out": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
    "down": "mlp.down_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
}  # fmt: skip
_GPT2 = {"norm1": "ln_1", "norm2": "ln_2", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}


_interleaved = jit(QuantizedArray.interleaved)


def load(path: str | os.PathLike[str], *, mmap: bool = True, interleave: bool = False) -> Decoder:
    """A decoder from a GGUF file, or from a folder of transformers: config.json and safetensors, one file or several.

    Of Llama's shape (llama, mistral, qwen2, qwen3) or GPT-2's. Weights stay as they are in the file, quantized ones
    too, and in its pages where ``mmap``. docs/inference.md has an example.

    With ``interleave`` quantized weights of products are copied, as :meth:`volta.nn.QuantizedArray.interleaved` lays
    them: for a CPU, which then makes tokens faster. Those whose sizes do not allow it stay, and what rows are taken of.

    Raises:
        FormatError: when a file is damaged, something is missing in it, or the model is of another architecture.
        OSError: when a file cannot be read.
    """
    try:
        found = _from_folder(Path(path), mmap) if os.path.isdir(path) else _from_gguf(path, mmap)
        return attrs.evolve(found, params=_with_interleaved(found.params)) if interleave else found
    except _MissingError as missing:
        raise FormatError(f"{os.fspath(path)}: {missing}") from None


def _with_interleaved(params: Mapping[str, Any]) -> dict[str, Any]:
    def of(x: Any) -> Any:
        return _interleaved(x) if isinstance(x, QuantizedArray) and x.interleaves else x

    layers = [
        {name: {what: of(x) if what == "weight" else x for what, x in part.items()} for name, part in layer.items()}
        for layer in params["layers"]
    ]
    return {**params, "layers": layers, "output": of(params.get("output", params["embedding"]))}


class _MissingError(Exception):
    """Something that a model needs is not in its files."""


def _kind(name: Any) -> Any:
    if name not in _KINDS:
        raise _MissingError(f"the architecture is {name!r:.40}; Volta has {', '.join(_KINDS)}")
    return _KINDS[name]


class _Names:
    """Arrays by the names of a file."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = arrays

    def take(self, name: str) -> Any:
        if name not in self.arrays:
            raise _MissingError(f"there is no array {name!r}")
        return self.arrays[name]

    def product(self, name: str, turned: bool = False) -> dict[str, Any]:
        """A product's weight (outputs, inputs), and its bias if it has one."""
        weight = self.take(f"{name}.weight")
        found = {"weight": vnp.transpose(weight) if turned else weight}
        return found | ({"bias": _plain(self.arrays[f"{name}.bias"])} if f"{name}.bias" in self.arrays else {})

    def norm(self, name: str) -> dict[str, Any]:
        found = {"scale": _plain(self.take(f"{name}.weight"))}
        return found | ({"bias": _plain(self.arrays[f"{name}.bias"])} if f"{name}.bias" in self.arrays else {})

    def layer(self, names: Mapping[str, str], prefix: str, kind: str, turned: bool = False) -> dict[str, Any]:
        layer: dict[str, Any] = {}
        for own, name in names.items():
            if "norm" in own:
                if own in ("norm1", "norm2") or f"{prefix}{name}.weight" in self.arrays:
                    layer[own] = self.norm(prefix + name)
            elif own != "gate" or kind == "llama":
                layer[own] = self.product(prefix + name, turned)
        return layer


def _plain(x: Any) -> Array:
    return x.dequantize() if isinstance(x, QuantizedArray) else x


def _split(product: Mapping[str, Any], config: Config, turned: bool = False) -> dict[str, Any]:
    """Queries', keys' and values' products, which GPT-2's files hold as one."""
    size, found = config.heads * config.head_size, {}
    for i, name in enumerate("qkv"):
        part = slice(i * size, (i + 1) * size)
        found[name] = {what: x[part] for what, x in product.items()}
    return found


# -- GGUF --------------------------------------------------------------------------------------------------------------


def _from_gguf(path: str | os.PathLike[str], mmap: bool) -> Decoder:
    file = io.load_gguf(path, mmap=mmap)
    names, architecture = _Names(file.arrays), file.metadata.get("general.architecture")
    kind = _kind(architecture)

    def number(key: str, default: Any = None) -> Any:
        value = file.metadata.get(f"{architecture}.{key}", default)
        if not isinstance(value, (int, float)) or value <= 0:
            raise _MissingError(f"its metadata has no number {architecture}.{key}")
        return value

    width, heads = number("embedding_length"), number("attention.head_count")
    eps = "attention.layer_norm_epsilon" if kind == "gpt2" else "attention.layer_norm_rms_epsilon"
    config = Config(
        vocabulary=names.take("token_embd.weight").shape[0], width=width, layers=number("block_count"), heads=heads,
        key_heads=number("attention.head_count_kv", heads), head_size=number("attention.key_length", width // heads),
        hidden=number("feed_forward_length"), context=number("context_length"), kind=kind, eps=number(eps),
        interleaved=architecture == "llama", rotary_base=number("rope.freq_base", 10000.0),
        rotary_size=file.metadata.get(f"{architecture}.rope.dimension_count", 0),
        window=file.metadata.get(f"{architecture}.attention.sliding_window") or None,
    )  # fmt: skip
    params = {"embedding": names.take("token_embd.weight"), "norm": names.norm("output_norm"), "layers": []}
    if "output.weight" in names.arrays:
        params["output"] = names.take("output.weight")
    if kind == "gpt2":
        params["positions"] = names.take("position_embd.weight")
    else:
        factors = names.arrays.get("rope_freqs.weight")
        size = config.rotary_size or config.head_size
        params["frequencies"] = rotary_frequencies(size, config.rotary_base, factors)
    own = _GGUF if kind == "llama" else {n: _GGUF[n] for n in ("norm1", "norm2", "out", "up", "down")}
    for i in range(config.layers):
        layer = names.layer(own, f"blk.{i}.", kind)
        if kind == "gpt2":
            layer |= _split(names.product(f"blk.{i}.attn_qkv"), config)
        params["layers"].append(layer)
    return Decoder(config, params)


# -- transformers ------------------------------------------------------------------------------------------------------


def _from_folder(folder: Path, mmap: bool) -> Decoder:
    settings = _json(folder / "config.json")
    kind = _kind(settings.get("model_type"))
    names = _Names(_arrays(folder, mmap))
    make: Callable[..., Decoder] = _llama if kind == "llama" else _gpt2
    return make(settings, names)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _MissingError(f"there is no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise _MissingError(f"{path.name} is no JSON: {error!s:.80}") from None
    if not isinstance(found, dict):
        raise _MissingError(f"{path.name} is no object")
    return found


def _arrays(folder: Path, mmap: bool) -> dict[str, Array]:
    """Those of model.safetensors, or of the files that an index names."""
    index = folder / "model.safetensors.index.json"
    files = ["model.safetensors"]
    if index.exists():
        files = sorted({str(name) for name in _json(index).get("weight_map", {}).values()})
    found: dict[str, Array] = {}
    for name in files:
        if os.path.basename(name) != name or not (folder / name).exists():
            raise _MissingError(f"there is no {name:.80}")
        found |= io.load(folder / name, mmap=mmap)
    prefix = "model." if any(n.startswith("model.") for n in found) else "transformer."
    return {n.removeprefix(prefix): x for n, x in found.items()}


def _size(settings: Mapping[str, Any], key: str, default: Any = None) -> Any:
    value = settings.get(key)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or value <= 0:
        raise _MissingError(f"config.json has no number {key!r}")
    return value


def _llama(settings: Mapping[str, Any], names: _Names) -> Decoder:
    width, heads = _size(settings, "hidden_size"), _size(settings, "num_attention_heads")
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise _MissingError(
            f"rotary positions of the type {rope.get('rope_type', rope.get('type'))!r} are not there yet"
        )
    windowed = settings.get("use_sliding_window", settings.get("model_type") == "mistral")
    config = Config(
        vocabulary=names.take("embed_tokens.weight").shape[0], width=width, layers=_size(settings, "num_hidden_layers"),
        heads=heads, key_heads=_size(settings, "num_key_value_heads", heads),
        head_size=_size(settings, "head_dim", width // heads), hidden=_size(settings, "intermediate_size"),
        context=_size(settings, "max_position_embeddings"), eps=_size(settings, "rms_norm_eps", 1e-6),
        rotary_base=float(rope.get("rope_theta") or _size(settings, "rope_theta", 10000.0)),
        window=settings.get("sliding_window") if windowed else None,
    )  # fmt: skip
    params = {"embedding": names.take("embed_tokens.weight"), "norm": names.norm("norm")}
    if not settings.get("tie_word_embeddings", False):
        params["output"] = names.take("lm_head.weight")
    params["layers"] = [names.layer(_LLAMA, f"layers.{i}.", "llama") for i in range(config.layers)]
    return Decoder(config, params)


def _gpt2(settings: Mapping[str, Any], names: _Names) -> Decoder:
    """Whose products lie as (inputs, outputs)."""
    width, heads = _size(settings, "n_embd"), _size(settings, "n_head")
    config = Config(
        vocabulary=names.take("wte.weight").shape[0], width=width, layers=_size(settings, "n_layer"), heads=heads,
        key_heads=heads, head_size=width // heads, hidden=_size(settings, "n_inner", 4 * width),
        context=_size(settings, "n_positions"), kind="gpt2", eps=_size(settings, "layer_norm_epsilon", 1e-5),
    )  # fmt: skip
    params = {"embedding": names.take("wte.weight"), "positions": names.take("wpe.weight"), "norm": names.norm("ln_f")}
    layers = []
    for i in range(config.layers):
        layer = names.layer(_GPT2, f"h.{i}.", "gpt2", turned=True)
        layers.append(layer | _split(names.product(f"h.{i}.attn.c_attn", turned=True), config))
    return Decoder(config, params | {"layers": layers})
