"""Texts on a GPU: the next token is begun before the last one is read, and they are the CPU's."""

import numpy as np
import pytest

import volta
from volta import models, nn, random, tree

CONFIG = models.Config(vocabulary=17, width=16, layers=1, heads=2, key_heads=1, head_size=8, hidden=24, context=32)


@pytest.mark.slow
def test_the_cpus_tokens(gpu):
    model = models.random_decoder(CONFIG)
    there = models.Decoder(CONFIG, tree.map(lambda x: volta.device_put(np.asarray(x), "cuda"), model.params))
    warm, key = nn.Sampling(temperature=2.0, top_k=9), random.key(3)
    for settings in ({"stop": set()}, {"sampling": warm, "key": key}):
        want = list(models.generate(model, [1, 2, 3], max_tokens=4, **settings))
        with volta.default_device("cuda"):
            assert list(models.generate(there, [1, 2, 3], max_tokens=4, **settings)) == want
    with volta.default_device("cuda"):  # one token too many is begun, and not given
        made = models.generate(there, [1, 2, 3], max_tokens=4, stop={want[2]}, **settings)
        assert list(made) == want[: want.index(want[2])]
