"""Dtypes that NumPy does not have: those of random keys.

An array of keys has one element a key, and a dtype that says which generator the keys are for, so that keys can be
moved, chosen and compared, and nothing else. What a key is made of stands here, and nowhere else: its uint32 words, as
``random.key_data`` gives them, which lie in memory one after the other. So an array of keys and an array of their words
are the same bytes.

Programs have the dtype; the first thing that happens to one that is to be compiled is that keys become words
(``volta.xla_like.keys``), so plans, kernels and backends never see one.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy as np


class extended(np.generic):  # noqa: N801 - a scalar type, named as NumPy's and JAX's are
    """What ``issubdtype`` is asked for: the dtypes that NumPy does not have."""


class prng_key(extended):  # noqa: N801 - a scalar type, named as NumPy's and JAX's are
    """What ``issubdtype`` is asked for: the dtypes of random keys.

    >>> import volta
    >>> volta.numpy.issubdtype(volta.random.key(0).dtype, volta.dtypes.prng_key)
    True
    """


@attrs.frozen(repr=False)
class KeyType:
    """The dtype of the keys of one generator, with what code asks a dtype for."""

    name: str
    impl: str
    words: int
    type: ClassVar[Any] = prng_key
    kind: ClassVar[str] = "key"  # none of NumPy's letters: a key is no number

    @property
    def itemsize(self) -> int:
        """Bytes of a key."""
        return 4 * self.words

    def __repr__(self) -> str:
        return self.name


FRY: Any = KeyType("key<fry>", "threefry2x32", 2)
"""Keys of Threefry-2x32. (Of any type, since types of arrays are annotated as NumPy's.)"""

RBG: Any = KeyType("key<rbg>", "rbg", 4)
"""Keys whose bits are those of ``lax.rng_bit_generator``, Philox-4x32, and whose new keys are made by Threefry."""

UNSAFE_RBG: Any = KeyType("key<urbg>", "unsafe_rbg", 4)
"""The same, with new keys made by Philox too, as JAX makes them: quicker, and nobody knows how independent."""

KEY_TYPES: tuple[Any, ...] = (FRY, RBG, UNSAFE_RBG)


def is_key(dtype: Any) -> bool:
    """Whether a dtype is one of keys."""
    return type(dtype) is KeyType


def refusal(dtype: Any) -> str:
    """Why an operation does not take keys, and what to do."""
    return (
        f"{dtype} is the dtype of random keys, which are moved, chosen and compared by == and !=, and nothing else; "
        "random.key_data(keys) gives their uint32 words"
    )
