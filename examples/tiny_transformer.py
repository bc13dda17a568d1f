"""Train a tiny transformer on Python's own source code, sample from it, save it, load it: the same bits come back.

    python examples/tiny_transformer.py [--steps 1000] [--seed 0] [--out model.safetensors]

A decoder-only transformer (256 byte values, width 64, 4 heads, 2 layers, 64 bytes of context) learns to predict the
next byte of the standard library's source, which every machine with Python has. The model is plain functions over a
pytree of arrays; one jitted step draws a batch, computes the loss and its gradient, and updates the parameters.
"""

import argparse
import math
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import volta
import volta.numpy as vnp
from volta import io, nn, optim, random

try:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
except ImportError:  # plain lines instead of a bar
    Progress = None

VOCABULARY = 256  # bytes
WIDTH = 64
HEADS = 4
LAYERS = 2
LENGTH = 64
BATCH = 8


# -- data --------------------------------------------------------------------------------------------------------------


def read_corpus():
    """The standard library's top-level modules as bytes: (training, held out), every tenth file being held out."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [np.frombuffer(file.read_bytes(), np.uint8) for file in files]
    held_out = texts[::10]
    training = [text for i, text in enumerate(texts) if i % 10]
    return np.concatenate(training), np.concatenate(held_out)


def draw_batch(key, corpus):
    """BATCH random windows of the corpus: inputs, and the same windows one byte later as targets."""
    starts = random.randint(key, (BATCH, 1), 0, corpus.shape[0] - LENGTH)
    windows = vnp.take(corpus, starts + vnp.arange(LENGTH + 1), axis=0).astype(vnp.int32)
    return windows[:, :-1], windows[:, 1:]


# -- model -------------------------------------------------------------------------------------------------------------


def init_params(key):
    """All parameters, as nested dicts and lists of arrays."""

    def matrix(key, rows, columns, scale=1.0):
        return random.normal(key, (rows, columns)) * (scale / math.sqrt(rows))

    def layer(key):
        keys = random.split(key, 4)
        return {
            "norm1": vnp.ones(WIDTH),
            "qkv": matrix(keys[0], WIDTH, 3 * WIDTH),
            "out": matrix(keys[1], WIDTH, WIDTH, 1 / math.sqrt(2 * LAYERS)),
            "norm2": vnp.ones(WIDTH),
            "up": matrix(keys[2], WIDTH, 4 * WIDTH),
            "down": matrix(keys[3], 4 * WIDTH, WIDTH, 1 / math.sqrt(2 * LAYERS)),
        }

    keys = random.split(key, LAYERS + 2)
    return {
        "bytes": 0.02 * random.normal(keys[0], (VOCABULARY, WIDTH)),
        "positions": 0.02 * random.normal(keys[1], (LENGTH, WIDTH)),
        "layers": [layer(k) for k in keys[2:]],
        "norm": vnp.ones(WIDTH),
    }


def attention(layer, x):
    """Causal self-attention over x of shape (batch, length, width)."""
    batch, length, _ = x.shape
    q, k, v = vnp.split(x @ layer["qkv"], 3, axis=-1)
    q, k, v = (y.reshape(batch, length, HEADS, WIDTH // HEADS) for y in (q, k, v))
    y = nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length, WIDTH)
    return y @ layer["out"]


def forward(params, tokens):
    """Logits of the next byte after each position: (batch, length) integers to (batch, length, 256)."""
    x = params["bytes"][tokens] + params["positions"]
    for layer in params["layers"]:
        x = x + attention(layer, nn.layer_norm(x, layer["norm1"]))
        x = x + nn.gelu(nn.layer_norm(x, layer["norm2"]) @ layer["up"]) @ layer["down"]
    return nn.layer_norm(x, params["norm"]) @ params["bytes"].T


def loss_of(params, inputs, targets):
    """Mean cross entropy in nats a byte."""
    return vnp.mean(nn.softmax_cross_entropy_with_integer_labels(forward(params, inputs), targets))


# -- training ----------------------------------------------------------------------------------------------------------


def make_step(optimizer):
    """One training step as one compiled program; parameters and optimizer state are updated in place (donated)."""

    def train_step(params, state, key, corpus):
        inputs, targets = draw_batch(key, corpus)
        loss, gradients = volta.value_and_grad(loss_of)(params, inputs, targets)
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state, loss

    return volta.jit(train_step, donate_argnums=(0, 1))


class Report:
    """Progress on the terminal: a bar where rich is installed, and a line now and then."""

    def __init__(self, steps):
        self.steps, self.every = steps, max(1, steps // 10)
        self.bar = None
        if Progress is not None:
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}"))
            self.task = self.bar.add_task("training", total=steps, loss=math.nan)
            self.bar.start()

    def __call__(self, step, loss):
        """After each step (from 1)."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step, loss=loss)
        if step == 1 or step % self.every == 0:
            line = f"step {step:5d}   loss {loss:.4f}"
            self.bar.console.print(line, highlight=False) if self.bar is not None else print(line, flush=True)

    def close(self):
        if self.bar is not None:
            self.bar.stop()


def held_out_loss(params, corpus, key, batches=20):
    """The mean loss over batches of text that was not trained on."""
    evaluate = volta.jit(lambda params, key, corpus: loss_of(params, *draw_batch(key, corpus)))
    return sum(float(evaluate(params, random.fold_in(key, i), corpus)) for i in range(batches)) / batches


# -- inference ---------------------------------------------------------------------------------------------------------


@volta.jit
def next_byte(params, window, length, key, temperature):
    """Draw the byte after the first ``length`` bytes of ``window``, and put it there (sliding when it is full)."""
    logits = forward(params, window[None])[0, length - 1]
    byte = random.categorical(key, logits / temperature)
    window = vnp.where(length == LENGTH, vnp.roll(window, -1), window)
    place = vnp.minimum(length, LENGTH - 1)
    return vnp.where(vnp.arange(LENGTH) == place, byte, window), place + 1, byte


def sample(params, prompt, key, n=240, temperature=0.8):
    """``prompt`` and n more bytes, as text."""
    window = np.zeros(LENGTH, np.int32)
    window[: len(prompt)] = np.frombuffer(prompt, np.uint8)
    window, length, text = vnp.asarray(window), vnp.asarray(len(prompt), vnp.int32), list(prompt)
    for i in range(n):
        window, length, byte = next_byte(params, window, length, random.fold_in(key, i), temperature)
        text.append(int(byte))
    return bytes(text).decode(errors="replace")


def bits(x):
    """The bytes of an array, to compare without any tolerance."""
    return np.asarray(x).tobytes()


# -- the program -------------------------------------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000, help="training steps (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    parser.add_argument("--out", type=Path, help="where to save the model (default: a file in the temporary folder)")
    options = parser.parse_args(argv)
    out = options.out or Path(tempfile.gettempdir()) / "volta-tiny-transformer.safetensors"

    training, held_out = (vnp.asarray(text) for text in read_corpus())
    print(f"text: {training.size:,} bytes of Python source to train on, {held_out.size:,} held out")
    init_key, data_key, test_key, sample_key = random.split(random.key(options.seed), 4)
    params = init_params(init_key)
    print(f"model: {sum(x.size for x in volta.tree.leaves(params)):,} parameters")

    warmup = max(1, options.steps // 10)
    rate = optim.warmup_cosine_decay_schedule(0.0, 3e-3, warmup, max(options.steps, warmup + 1), 1e-4)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(rate, weight_decay=0.01))
    state = optimizer.init(params)

    start = time.perf_counter()
    step = make_step(optimizer).lower(params, state, data_key, training).compile()
    print(f"compiled the training step in {time.perf_counter() - start:.2f} s")

    report, times, losses = Report(options.steps), [], []
    for i in range(options.steps):
        start = time.perf_counter()
        params, state, loss = step(params, state, random.fold_in(data_key, i), training)
        losses.append(float(loss))
        times.append(time.perf_counter() - start)
        report(i + 1, losses[-1])
    report.close()
    print(f"held-out loss {held_out_loss(params, held_out, test_key):.4f} nats a byte")

    print("\n--- sample " + "-" * 69)
    print(sample(params, b"def ", sample_key))
    print("-" * 80)

    inputs = vnp.asarray(held_out[: BATCH * LENGTH].reshape(BATCH, LENGTH), vnp.int32)
    infer = volta.jit(forward)
    before = infer(params, inputs)
    io.save(out, {"params": params, "optimizer": state, "step": options.steps}, metadata={"text": "Python source"})
    loaded = io.load(out)
    same = bits(infer(loaded["params"], inputs)) == bits(before)
    print(f"saved {out} ({out.stat().st_size:,} bytes), loaded it, inferred again: bits identical: {same}")
    if not same:
        raise SystemExit("the loaded model gave other bits")

    print(f"\nthe training step's plan: {step.peak_live_bytes:,} bytes at its peak, kernels (and how often they run):")
    for kernel, runs in Counter(call.describe() for call in step.plan.calls).items():
        print(f"  {runs:3d} x {kernel}")
    print(f"time per step: {1e3 * float(np.median(times)):.2f} ms (median)")
    return losses


if __name__ == "__main__":
    main()
