"""Saving and loading of models: deterministic files on the safetensors layout, replaced all at once or not at all."""

from volta.io.files import FileInfo, load, load_metadata, save

__all__ = ["FileInfo", "load", "load_metadata", "save"]
