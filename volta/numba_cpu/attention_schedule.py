"""What the CPU decides about attention."""

from __future__ import annotations

import attrs

from volta.xla_like.attention import AttentionSpec


@attrs.frozen
class VectorSpec(AttentionSpec):
    """What one compiled kernel of the CPU is for: `vector_bits` is the width of its registers."""

    vector_bits: int = 512

    @classmethod
    def of(cls, spec: AttentionSpec, vector_bits: int) -> VectorSpec:
        return cls(**attrs.asdict(spec), vector_bits=vector_bits)
