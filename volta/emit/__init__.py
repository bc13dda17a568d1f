"""LLVM emission shared by the backends: loops, scalar expressions, vector idioms."""
