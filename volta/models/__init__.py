"""Decoder models as people run them: weights from GGUF and safetensors files, text token by token.

>>> from volta import models
>>> config = models.Config(vocabulary=11, width=8, layers=1, heads=2, key_heads=1, head_size=4, hidden=16)
>>> model = models.random_decoder(config, seed=0)
>>> tokens = models.generate(model, [1, 2, 3], max_tokens=4)  # an iterator: tokens come as they are made
>>> len(list(tokens))
4
"""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.models.batching import Batch, Request
from volta.models.decoder import Config, Decoder, random_decoder
from volta.models.generation import generate
from volta.models.loading import load
from volta.models.vocabulary import Vocabulary, vocabulary

__all__ = [
    "Batch",
    "Config",
    "Decoder",
    "Request",
    "Vocabulary",
    "generate",
    "load",
    "random_decoder",
    "serve",
    "vocabulary",
]

if TYPE_CHECKING:  # so that a type checker knows which names there are
    from volta.models.server import serve
else:
    __getattr__, __dir__ = _namespace(__name__, serve="volta.models.server")
