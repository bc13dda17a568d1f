"""Saving and loading of models: deterministic files on the safetensors layout, replaced all at once or not at all;
and GGUF files are read."""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.io.files import FileInfo, load, load_metadata, save
from volta.io.gguf import GGUF, load_gguf

__all__ = ["GGUF", "FileInfo", "load", "load_gguf", "load_metadata", "save"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
