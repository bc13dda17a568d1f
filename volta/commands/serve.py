"""Serve a model's completions over HTTP, with OpenAI's interface.

    volta serve model.gguf --port 8000 --rows 8
    curl localhost:8000/v1/completions -d '{"prompt": "Once upon a time", "max_tokens": 16, "seed": 7}'

The model is a GGUF file or a folder of transformers. Prompts are texts where the file has a vocabulary that Volta
reads, else lists of tokens. Requests run together, and each has the answer that it has alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from volta import models
from volta.core.errors import ArgumentError, FormatError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a GGUF file, or a folder of config.json and safetensors")
    parser.add_argument("--host", default="127.0.0.1", help="whom it listens to: 0.0.0.0 for other machines too")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--interleave", action="store_true", help="copy quantized weights, as a CPU reads them faster")
    parser.add_argument("--rows", type=int, default=8, help="requests that run at once; further ones wait")
    parser.add_argument("--length", type=int, help="the longest text in tokens; the model's context where not given")


def run(options: argparse.Namespace) -> int:
    try:
        model = models.load(options.model, interleave=options.interleave)
    except OSError as error:
        raise ArgumentError(f"{options.model}: {error.strerror or error}") from None
    name = Path(options.model).stem
    try:
        vocabulary = models.vocabulary(options.model) if Path(options.model).is_file() else None
    except FormatError as error:
        print(f"prompts are lists of tokens: {error}", file=sys.stderr)
        vocabulary = None
    stop = [] if vocabulary is None or vocabulary.end is None else [vocabulary.end]
    try:
        server = models.serve(
            model,
            host=options.host,
            port=options.port,
            rows=options.rows,
            length=options.length,
            name=name,
            vocabulary=vocabulary,
            stop=stop,
        )
    except OSError as error:
        raise ArgumentError(f"{options.host}:{options.port}: {error.strerror or error}") from None
    print(f"{name} at http://{options.host}:{server.server_address[1]}/v1/completions", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0
