"""Sorts, scans and scatters, which take several kernels each (`steps`)."""
