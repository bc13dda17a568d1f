"""Attention and its gradients, in tiles or row by row."""
