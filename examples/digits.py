"""Recognise handwritten digits with a small network, written for one image and mapped over batches by vmap.

    python examples/digits.py [--epochs 20] [--seed 0]

The data are scikit-learn's digits: 1797 images of 8 by 8 pixels. The loss is written for one example;
``volta.vmap`` makes it a loss of a batch, and promises that example i of a batch has the bits it has alone.
"""

import argparse
import math
import sys

import numpy as np

import volta
import volta.numpy as vnp
from volta import nn, optim, random

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("this example reads the digits data set of scikit-learn; install it with: pip install scikit-learn")

SIZES = (64, 128, 10)
BATCH = 50
TEST = 297


def init_params(key):
    keys = random.split(key, len(SIZES) - 1)
    return [
        {"w": random.normal(k, (rows, columns)) * math.sqrt(2 / rows), "b": vnp.zeros(columns)}
        for k, rows, columns in zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    ]


def logits_of(params, image):
    """One image of 64 pixels to 10 logits."""
    *hidden, last = params
    x = image
    for layer in hidden:
        x = nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss_of(params, image, label):
    """The cross entropy of one example."""
    return nn.softmax_cross_entropy_with_integer_labels(logits_of(params, image), label)


def batch_loss(params, images, labels):
    return vnp.mean(volta.vmap(loss_of, in_axes=(None, 0, 0))(params, images, labels))


@volta.jit
def predict(params, images):
    return vnp.argmax(volta.vmap(logits_of, in_axes=(None, 0))(params, images), axis=-1)


def train(key, images, labels, epochs):
    """The parameters after so many passes over the training set, in an order drawn anew for each."""
    init_key, order_key = random.split(key)
    params = init_params(init_key)
    steps = epochs * (len(images) // BATCH)
    optimizer = optim.adam(optim.cosine_decay_schedule(1e-2, steps))
    state = optimizer.init(params)

    @volta.jit
    def step(params, state, rows):
        loss, gradients = volta.value_and_grad(batch_loss)(params, images[rows], labels[rows])
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state, loss

    for epoch in range(epochs):
        order = np.asarray(random.permutation(random.fold_in(order_key, epoch), len(images)))
        losses = []
        for batch in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            params, state, loss = step(params, state, batch)
            losses.append(float(loss))
        print(f"epoch {epoch + 1:3d}   loss {sum(losses) / len(losses):.4f}", flush=True)
    return params


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training set (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    options = parser.parse_args(argv)

    split_key, train_key = random.split(random.key(options.seed))
    data = load_digits()
    order = random.permutation(split_key, len(data.target))
    images = vnp.asarray(data.data / 16, vnp.float32)[order]
    labels = vnp.asarray(data.target, vnp.int32)[order]
    params = train(train_key, images[TEST:], labels[TEST:], options.epochs)

    test_images, test_labels = images[:TEST], labels[:TEST]
    accuracy = float(vnp.mean(predict(params, test_images) == test_labels))
    print(f"accuracy on {TEST} images that were not trained on: {100 * accuracy:.1f}%")

    together = np.asarray(volta.vmap(logits_of, in_axes=(None, 0))(params, test_images[:5]))
    alone = np.stack([np.asarray(logits_of(params, image)) for image in test_images[:5]])
    print(f"batched and one by one: bits identical: {together.tobytes() == alone.tobytes()}")
    return accuracy


if __name__ == "__main__":
    main()
