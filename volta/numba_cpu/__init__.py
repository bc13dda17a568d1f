"""The CPU backend: kernels compiled through Numba's code generator, and the machinery that runs them.

In the order the data visits them: ``target`` (the machine), ``unit`` and ``cache`` (many kernels, one compilation, one
file on disk), ``launch`` (the launch table and the loop that walks it), ``threads`` (the workers), ``fpenv`` (rounding
mode and flush-to-zero).
"""
