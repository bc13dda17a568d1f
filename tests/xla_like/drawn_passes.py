"""Programs of a few passes, as transforms have them, whose parts and arithmetic are drawn."""

from __future__ import annotations

import numpy as np

import volta.numpy as vnp


def passes(random, least=1):
    """A program of a few passes, whose order of parts and arithmetic are drawn, and its operands; of one of the
    dimensions that passes leave alone at ``least`` so many values."""
    outer, inner = (int(n) for n in random.integers(1, 6, 2))
    outer, inner = (outer + least - 1, inner) if random.integers(2) else (outer, inner + least - 1)
    n = int(random.choice([6, 8, 12, 24, 30]))
    steps = [
        (int(random.choice([r for r in (2, 3, 4, 5, 6) if n % r == 0])), *random.integers(0, (2, 2, 2, 5)).tolist())
        for _ in range(random.integers(2, 5))
    ]

    def f(x, y, z):
        for r, mixed, back, apart, between in steps:
            parts = [[v.reshape(outer, r, n // r, inner)[:, k] for k in range(r)] for v in (x, y)]
            out = [[sum(p * (1 + k * j % 5) for j, p in enumerate(v)) for k in range(r)] for v in parts]
            if mixed:
                out = [[a + b for a, b in zip(*out, strict=True)], [a - b for a, b in zip(*out, strict=True)]]
            out = [v[::-1] if back else v for v in out]
            joined = [vnp.concatenate(v, 1) if apart else vnp.stack(v, 2) for v in out]
            x, y = (v.reshape(outer, n, inner) for v in joined)
            if between == 1:
                x = x * vnp.arange(n, dtype=np.float32)[:, None]
            if between == 2:
                x = vnp.concatenate([x[:, n // 2 :], x[:, : n // 2]], 1)
            if between == 4:
                x = x * z
            if between == 3:
                x, y = x + y[:, ::-1], y
        return x, y

    return f, [random.standard_normal((outer, n, inner)).astype(np.float32) for _ in range(3)]
