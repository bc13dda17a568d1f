"""Tracing and transforms: one interpreter of operations a transform, each over its parent (the stackless design).

In the order to read them: ``tracer`` (what all traced values share), ``jaxpr_trace`` (recording a program), ``jvp``
(forward derivatives), ``linearize`` (values now, the linear part recorded), ``transpose`` (the linear part run
backwards), ``batch`` (vmap), ``composite`` (functions with derivatives of their own), ``calls`` (``jit`` and
``checkpoint`` inside traced programs), ``control`` with ``while_loop``, ``scan`` and ``cond`` (loops and choices).
"""
