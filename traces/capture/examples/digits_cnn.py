"""Trains a small CNN on the scikit-learn digits and captures a window of its gradients.

    PYTHONPATH=traces/capture python3 traces/capture/examples/digits_cnn.py OUT                        8 virtual workers in one process
    PYTHONPATH=traces/capture torchrun --nproc_per_node 4 traces/capture/examples/digits_cnn.py OUT    4 processes with DDP

Needs python3-torch and python3-sklearn.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from sparscale_capture import Capture


def model():
    return nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
                         nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
                         nn.Linear(512, 48), nn.ReLU(), nn.Linear(48, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", help="folder of the trace; - for a stream")
    parser.add_argument("--workers", type=int, default=8, help="virtual workers without DDP")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--window", type=int, nargs=2, default=[20, 30], metavar=("FIRST", "COUNT"))
    parser.add_argument("--rows", type=float, default=1.0, help="share of the rows of large layers to keep")
    parser.add_argument("--drop", type=int, metavar="ITERATION", help="a tenth of the learning rate from here on")
    options = parser.parse_args()
    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = slice(0, 1500), slice(1500, None)
    net = model()
    if distributed:
        net = nn.parallel.DistributedDataParallel(net)
    rate = 0.05
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    capture = Capture(net, options.out, [tuple(options.window)], workers=None if distributed else options.workers, name="digits-cnn",
                      model="CNN of 3 convolutions and 2 linear layers", dataset="scikit-learn digits", licence="CC BY 4.0", rows=options.rows,
                      optimizer="SGD", momentum=0.9, batch_per_worker=32, data_order="iid")

    def batch(worker):
        random = torch.Generator().manual_seed(1000 * capture.iteration + worker)
        chosen = torch.randint(0, 1500, (32,), generator=random)
        return images[train][chosen], labels[train][chosen]

    for iteration in range(options.iterations):
        if iteration == options.drop:
            rate *= 0.1
            optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        if distributed:
            inputs, targets = batch(dist.get_rank())
            loss = loss_of(net(inputs), targets)
            loss.backward()
            capture.step(loss=loss, learning_rate=rate)
        else:
            for worker in range(options.workers):
                with capture.worker(worker) as report:
                    inputs, targets = batch(worker)
                    loss = loss_of(net(inputs), targets)
                    loss.backward()
                    report(loss)
            capture.step(learning_rate=rate)
        optimizer.step()
    capture.close()
    net.eval()
    with torch.no_grad():
        accuracy = (net(images[test]).argmax(1) == labels[test]).float().mean().item()
    if not distributed or dist.get_rank() == 0:
        print(f"test accuracy {accuracy:.3f}", file=sys.stderr)


main()
