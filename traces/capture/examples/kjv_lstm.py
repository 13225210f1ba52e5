"""Trains a word LSTM on the King James text (stateful stream: every worker reads on where it stopped) and captures a window.

    PYTHONPATH=traces/capture python3 traces/capture/examples/kjv_lstm.py OUT

Needs python3-torch and the program bible (Debian packages bible-kjv and bible-kjv-text). The text is in the public domain.
"""

import argparse
import collections
import math
import re
import subprocess
import sys

import torch
from torch import nn

from sparscale_capture import Capture

SEQUENCE, BATCH = 20, 4


class WordLstm(nn.Module):
    def __init__(self, words, size):
        super().__init__()
        self.encoder = nn.Embedding(words, size)
        self.rnn = nn.LSTM(size, size)
        self.decoder = nn.Linear(size, words)

    def forward(self, inputs, state):
        output, state = self.rnn(self.encoder(inputs), state)
        return self.decoder(output), state


def text(passage):
    done = subprocess.run(["bible", "-f", passage], stdout=subprocess.PIPE, check=True, text=True)
    return [word for line in done.stdout.splitlines() for word in re.findall(r"[a-z]+", line.partition(" ")[2].lower())]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", help="folder of the trace; - for a stream")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--words", type=int, default=600)
    parser.add_argument("--size", type=int, default=24)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--window", type=int, nargs=2, default=[120, 16], metavar=("FIRST", "COUNT"))
    parser.add_argument("--passage", default="Gen1:1-Ruth4:22")
    parser.add_argument("--rows", type=float, default=1.0, help="share of the rows of large layers to keep")
    parser.add_argument("--drop", type=int, metavar="ITERATION", help="a tenth of the learning rate from here on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    words = text(options.passage)
    common = [word for word, _ in collections.Counter(words).most_common(options.words - 1)]
    number = {word: i + 1 for i, word in enumerate(common)}
    tokens = torch.tensor([number.get(word, 0) for word in words])
    # One stream per worker and sequence.
    streams = options.workers * BATCH
    tokens = tokens[:len(tokens) // streams * streams].view(streams, -1).t()
    net = WordLstm(options.words, options.size)
    rate = 0.5
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    capture = Capture(net, options.out, [tuple(options.window)], workers=options.workers, name="kjv-lstm", model="word LSTM",
                      dataset="King James Version (bible-kjv-text)", licence="public domain", optimizer="SGD", momentum=0.9,
                      batch_per_worker=BATCH, data_order="stateful", rows=options.rows)
    states = [None] * options.workers
    losses = []
    for iteration in range(options.iterations):
        if iteration == options.drop:
            rate *= 0.1
            optimizer.param_groups[0]["lr"] = rate
        at = iteration * SEQUENCE % (len(tokens) - SEQUENCE - 1)
        for worker in range(options.workers):
            columns = slice(worker * BATCH, (worker + 1) * BATCH)
            with capture.worker(worker) as report:
                state = None if states[worker] is None else tuple(part.detach() for part in states[worker])
                output, states[worker] = net(tokens[at:at + SEQUENCE, columns], state)
                loss = nn.functional.cross_entropy(output.flatten(0, 1), tokens[at + 1:at + SEQUENCE + 1, columns].flatten())
                loss.backward()
                report(loss)
                losses.append(loss.item())
        capture.step(learning_rate=rate)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    capture.close()
    last = losses[-10 * options.workers:]
    print(f"perplexity {math.exp(sum(last) / len(last)):.1f}", file=sys.stderr)


main()
