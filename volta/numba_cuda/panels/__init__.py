"""Panels of matrices, whose columns go one by one, and small matrices that are rotated."""
