"""The transforms that users call: ``jit``, ``grad``, ``vmap`` and their relatives."""
