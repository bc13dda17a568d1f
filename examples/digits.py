"""Recognise handwritten digits with a small network, written for one image and mapped over batches by vmap.

    python examples/digits.py [--network dense] [--epochs 20] [--seed 0]
    python examples/digits.py --network convolutional

The data are scikit-learn's digits: 1797 images of 8 by 8 pixels. The loss is written for one example;
``volta.vmap`` makes it a loss of a batch, and promises that example i of a batch has the bits it has alone.
"""

import argparse
import math
import sys

import numpy as np

import volta
import volta.numpy as vnp
from volta import lax, nn, optim, random

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("this example reads the digits data set of scikit-learn; install it with: pip install scikit-learn")

BATCH = 50
TEST = 297


def layer(key, shape):
    """Weights, whose last axis is of features out, and a bias."""
    return {"w": random.normal(key, shape) * math.sqrt(2 / math.prod(shape[:-1])), "b": vnp.zeros(shape[-1])}


def init_dense(key):
    first, last = random.split(key)
    return {"hidden": layer(first, (64, 128)), "out": layer(last, (128, 10))}


def dense(params, image):
    """One image of 8 by 8 pixels to 10 logits."""
    hidden, out = params["hidden"], params["out"]
    return nn.relu(image.ravel() @ hidden["w"] + hidden["b"]) @ out["w"] + out["b"]


def init_convolutional(key):
    keys = random.split(key, 3)
    shapes = {"fine": (3, 3, 1, 16), "coarse": (3, 3, 16, 32), "out": (2 * 2 * 32, 10)}
    return {name: layer(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def convolutional(params, image):
    """One image of 8 by 8 pixels to 10 logits: twice a convolution, and the largest of each 2 by 2 of its results."""
    x = image[None, :, :, None]
    for name in ("fine", "coarse"):
        w, b = params[name]["w"], params[name]["b"]
        x = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = nn.max_pool(nn.relu(x + b), (2, 2), (2, 2))
    return x.ravel() @ params["out"]["w"] + params["out"]["b"]


NETWORKS = {"dense": (init_dense, dense), "convolutional": (init_convolutional, convolutional)}


def train(key, network, images, labels, epochs):
    """The parameters after so many passes over the training set, in an order drawn anew for each."""
    init_params, logits_of = NETWORKS[network]
    init_key, order_key = random.split(key)
    params = init_params(init_key)
    steps = epochs * (len(images) // BATCH)
    optimizer = optim.adam(optim.cosine_decay_schedule(1e-2, steps))
    state = optimizer.init(params)

    def loss_of(params, image, label):
        """The cross entropy of one example."""
        return nn.softmax_cross_entropy_with_integer_labels(logits_of(params, image), label)

    def batch_loss(params, images, labels):
        return vnp.mean(volta.vmap(loss_of, in_axes=(None, 0, 0))(params, images, labels))

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
    parser.add_argument("--network", choices=NETWORKS, default="dense", help="what is trained (default dense)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training set (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default 0)")
    options = parser.parse_args(argv)

    split_key, train_key = random.split(random.key(options.seed))
    data = load_digits()
    order = random.permutation(split_key, len(data.target))
    images = vnp.asarray(data.images / 16, vnp.float32)[order]
    labels = vnp.asarray(data.target, vnp.int32)[order]
    params = train(train_key, options.network, images[TEST:], labels[TEST:], options.epochs)

    logits_of = NETWORKS[options.network][1]
    test_images, test_labels = images[:TEST], labels[:TEST]
    predicted = volta.jit(volta.vmap(logits_of, in_axes=(None, 0)))(params, test_images).argmax(-1)
    accuracy = float(vnp.mean(predicted == test_labels))
    print(f"accuracy on {TEST} images that were not trained on: {100 * accuracy:.1f}%")

    together = np.asarray(volta.vmap(logits_of, in_axes=(None, 0))(params, test_images[:5]))
    alone = np.stack([np.asarray(logits_of(params, image)) for image in test_images[:5]])
    print(f"batched and one by one: bits identical: {together.tobytes() == alone.tobytes()}")
    return accuracy


if __name__ == "__main__":
    main()
