"""Functions that models are made of: activations, normalisation, losses, attention, reductions over segments
and initializers.

All are plain functions of arrays, under the names of ``jax.nn`` (losses: of optax). They hold no state: a model's
parameters are pytrees that the caller keeps.

>>> import volta.numpy as vnp
>>> softmax(vnp.array([0.0, 0.0]))
Array([0.5, 0.5], dtype=float32)
"""

# ruff: noqa: I001 - packed, so that the names can be read at a glance
# fmt: off
from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.nn import initializers
from volta.nn.activations import (
    celu, elu, gelu, glu, hard_sigmoid, hard_silu, hard_swish, hard_tanh, identity, leaky_relu, log1mexp, log_sigmoid,
    mish, relu, relu6, selu, sigmoid, silu, soft_sign, softplus, sparse_plus, sparse_sigmoid, squareplus, swiglu, swish,
    tanh,
)
from volta.nn.attention import dot_product_attention
from volta.nn.caches import KeyValueCache, PagedKeyValueCache
from volta.nn.losses import (
    l2_loss, sigmoid_binary_cross_entropy, softmax_cross_entropy, softmax_cross_entropy_with_integer_labels,
    squared_error,
)
from volta.nn.normalization import (
    embedding, layer_norm, log_softmax, logmeanexp, logsumexp, one_hot, rms_norm, standardize,
)
from volta.nn.pooling import avg_pool, max_pool, min_pool
from volta.nn.quantized import QuantizedArray, linear
from volta.nn.rotary import rotary_embedding, rotary_frequencies
from volta.nn.sampling import GREEDY, Sampling, sample_token
from volta.nn.segments import segment_max, segment_min, segment_prod, segment_sum
from volta.numpy.normalizing import softmax

__all__ = [
    "GREEDY", "KeyValueCache", "PagedKeyValueCache", "QuantizedArray", "Sampling", "avg_pool", "celu",
    "dot_product_attention", "elu", "embedding", "gelu", "glu", "hard_sigmoid",
    "hard_silu", "hard_swish", "hard_tanh", "identity", "initializers", "l2_loss", "layer_norm", "leaky_relu", "linear",
    "log1mexp", "log_sigmoid", "log_softmax", "logmeanexp", "logsumexp", "max_pool", "min_pool", "mish", "one_hot",
    "relu", "relu6", "rms_norm", "rotary_embedding", "rotary_frequencies", "sample_token",
    "segment_max", "segment_min", "segment_prod", "segment_sum", "selu", "sigmoid",
    "sigmoid_binary_cross_entropy", "silu", "soft_sign", "softmax", "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels", "softplus", "sparse_plus", "sparse_sigmoid", "squared_error",
    "squareplus", "standardize", "swiglu", "swish", "tanh",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
