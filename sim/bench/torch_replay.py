#!/usr/bin/env python3
"""How many times faster the replay is than the same algorithms written in PyTorch, on the same gradients.

  sim/bench/torch_replay.py [--program build/release/sparscale] [--gradients N] [--workers n] [--threads t]

Makes a synthetic trace, replays its captured workers with both, checks that both select the same numbers in every iteration, and prints
processor time and wall time of one iteration. The PyTorch side does what the published reducers do for every worker: accumulate into a new
tensor, select, join the index lists, gather and sum the values, scatter the update, clear the residual. In one process ("torch") the workers
follow one another and collectives are copies in memory: that is the least PyTorch could take. In n processes ("gloo") every worker is one, as
the published reducers run, and collectives are those of torch.distributed. Also printed: the bare sum of gradient and residual in place, which
nothing can do without, and how many times faster than PyTorch a replay would be that did nothing else ("at most"; the sum is timed again before
each sparsifier, since machines vary). Ends with 77 when there is no torch to compare with.
"""
import argparse
import json
import math
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DENSITY = 0.01


def read_gradients(folder):
    import numpy
    manifest = json.loads((folder / "trace.json").read_text())
    file = manifest["files"][0]
    raw = numpy.memmap(folder / file["path"], mode="r")
    length = int(raw[:8].view("<u8")[0])
    header = json.loads(bytes(raw[8:8 + length]))
    begin, end = header["grad"]["data_offsets"]
    return numpy.asarray(raw[8 + length + begin:8 + length + end]).view("<f4").reshape(header["grad"]["shape"])


class Reducers:
    """State of n workers; step() is one iteration and gives (sum of the counts, size of the union)."""

    def __init__(self, name, gradients, ranks):
        import torch
        self.torch, self.name = torch, name
        self.n, self.size = gradients.shape[1], gradients.shape[2]
        self.ranks = ranks  # the workers of this process: all, or one
        self.k = int(DENSITY * self.size)
        self.gradients = [torch.from_numpy(gradients[:, r].copy()) for r in ranks]
        self.residual = [torch.zeros(self.size) for _ in ranks]
        self.threshold = 1 / (2 * math.sqrt(self.k))
        self.update = torch.zeros(self.size)
        self.count = 0
        self.blocks = 1024
        self.block = self.size // self.blocks // 32 * 32
        share = self.size // self.n
        self.sizes = [share + (p < self.size % self.n) for p in range(self.n)]
        if name == "exdyna":
            self.parts = [self.blocks // self.n + (p < self.blocks % self.n) for p in range(self.n)]
            self.selected = [0] * self.n

    def select_above(self, values, threshold):
        return self.torch.where(values.abs() >= self.torch.tensor(threshold, dtype=self.torch.float32))[0]

    def partition(self, t):
        """[begin, end) of every partition."""
        if self.name == "micro":
            sizes = self.sizes
        else:
            if t > 0:
                self.move_blocks(t)
            sizes = [count * self.block for count in self.parts]
            sizes[-1] += self.size - self.blocks * self.block
        begin, ranges = 0, []
        for size in sizes:
            ranges.append((begin, begin + size))
            begin += size
        return ranges

    def move_blocks(self, t):
        n = self.n
        selected = [0] * n
        for r in range(n):
            selected[(t - 1 + r) % n] = self.selected[r]
        mean, moved = self.count // n, int(self.block * self.count / self.size)
        for i in range(n - 1):
            left, right = selected[i] / mean, selected[i + 1] / mean
            step = 1 if left > 1.05 and right < 0.95238 else -1 if left < 0.95238 and right > 1.05 else 0
            giver = i if step == 1 else i + 1
            if step == 0 or self.parts[giver] - 1 < self.blocks / (4 * n):
                continue
            self.parts[i] -= step
            self.parts[i + 1] += step
            selected[i] -= step * moved
            selected[i + 1] += step * moved

    def next_threshold(self, t):
        if t > 0:
            ratio = self.count / self.k
            self.threshold *= 1.005 if ratio > 1.1 else 1.00125 if ratio > 0.909 else 0.995

    def step(self, t):
        torch, n = self.torch, self.n
        exclusive = self.name in ("micro", "exdyna")
        if exclusive:
            ranges = self.partition(t)
            self.next_threshold(t)
        sums, lists = [], []
        for i, r in enumerate(self.ranks):
            a = self.residual[i] + self.gradients[i][t % len(self.gradients[i])]
            sums.append(a)
            if self.name in ("topk", "cltk"):  # every worker computes one, also in the published class of cltk
                lists.append(torch.topk(a.abs(), self.k, sorted=False)[1])
            elif self.name == "hard_threshold":
                lists.append(self.select_above(a, self.threshold))
            else:
                begin, end = ranges[(t % n + r) % n]
                own = self.select_above(a[begin:end], self.threshold) + begin
                if own.numel() == 0:
                    own = torch.tensor([begin + t % (end - begin)])
                lists.append(own)
        counts, union = self.joined(lists, t)
        if not exclusive and self.name != "cltk":
            union = torch.unique(union)
        values = self.summed([a[union] for a in sums])
        self.update.zero_()
        self.update[union] = values / n
        for i, a in enumerate(sums):
            a[union] = 0
            self.residual[i] = a
        self.count, self.selected = union.numel(), counts
        return sum(counts), union.numel()

    # Collectives in memory.
    def joined(self, lists, t):
        counts = [own.numel() for own in lists]
        if self.name == "cltk":
            return counts, lists[t % self.n]
        return counts, self.stripped([self.padded(own, max(counts)) for own in lists], counts)

    def summed(self, values):
        total = self.torch.zeros_like(values[0])
        for own in values:
            total += own
        return total

    def padded(self, own, longest):
        return self.torch.cat([own, own.new_zeros(longest - own.numel())])

    def stripped(self, lists, counts):
        return self.torch.cat([own[:count] for own, count in zip(lists, counts)])


def over_gloo(base):
    class Distributed(base):
        def joined(self, lists, t):
            torch, dist = self.torch, self.torch.distributed
            own = lists[0]
            if self.name == "cltk":
                index = own.clone()
                dist.broadcast(index, t % self.n)
                return [own.numel()] * self.n, index
            counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.n)]
            dist.all_gather(counts, torch.tensor([own.numel()]))
            counts = [int(count) for count in counts]
            parts = [own.new_zeros(max(counts)) for _ in range(self.n)]
            dist.all_gather(parts, self.padded(own, max(counts)))
            return counts, self.stripped(parts, counts)

        def summed(self, values):
            self.torch.distributed.all_reduce(values[0])
            return values[0]

    return Distributed


def timed(reducers, few, many):
    found = [reducers.step(t) for t in range(few)]
    wall, processor = time.perf_counter(), time.process_time()
    found += [reducers.step(t) for t in range(few, many)]
    return found, (time.process_time() - processor) / (many - few), (time.perf_counter() - wall) / (many - few)


def one_rank(rank, n, trace, meeting, name, few, many, results):
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=n)
    results.put((rank, *timed(over_gloo(Reducers)(name, read_gradients(pathlib.Path(trace)), [rank]), few, many)))
    torch.distributed.barrier()


def in_processes(n, trace, name, few, many):
    import torch.multiprocessing
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (n, str(trace), folder + "/meeting", name, few, many, results)
        processes = [context.Process(target=one_rank, args=(rank, *arguments)) for rank in range(n)]
        for process in processes:
            process.start()
        answers = sorted((results.get(timeout=600) for _ in processes), key=lambda answer: answer[0])
        for process in processes:
            process.join()
    return answers[0][1], sum(answer[2] for answer in answers), max(answer[3] for answer in answers)


def children_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def replay(program, trace, name, n, threads, iterations, norms):
    before, start = children_s(), time.perf_counter()
    output = subprocess.run([program, "replay", "--trace", trace, "--no-verify", "--sparsifier", name, "--workers", str(n), "--density",
                             str(DENSITY), "--threads", str(threads), "--iterations", str(iterations)] + ([] if norms else ["--no-norms"]),
                            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return [json.loads(line) for line in output.splitlines()], time.perf_counter() - start, children_s() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/sparscale"))
    parser.add_argument("--gradients", type=int, default=1000000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    try:
        import numpy  # noqa: F401
        import torch
    except ImportError:
        print("skipped: this Python has no PyTorch and numpy", file=sys.stderr)
        sys.exit(77)
    torch.set_num_threads(arguments.threads)
    few, many = 5, 25
    n, threads, program = arguments.workers, arguments.threads, arguments.program
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace"
        subprocess.run([program, "trace", "synthesize", "resnet18", "--out", str(trace), "--workers", str(n), "--iterations", "4", "--full",
                        "--gradients", str(arguments.gradients)], check=True, stdout=subprocess.DEVNULL)
        gradients = read_gradients(trace)
        total, ready = torch.zeros(gradients.shape[1:]), torch.from_numpy(gradients.copy())

        def bare_sum_s():
            start = time.process_time()
            for t in range(many):
                total.add_(ready[t % 4])
            return (time.process_time() - start) / many

        bare_sum_s()  # pages are touched
        print(f"n = {n}, N = {gradients.shape[2]}, d = {DENSITY}, {threads} threads, torch {torch.__version__}; ms of one iteration: processor "
              f"(wall). In-place sum: {1e3 * bare_sum_s():.2f}")
        print(f"{'sparsifier':16} {'gloo':>20} {'torch':>20} {'replay':>18} {'gloo/':>7} {'torch/':>7} {'without norms':>18} {'gloo/':>7} {'torch/':>7} "
              f"{'at most: gloo/':>15} {'torch/':>7}")
        for name in ("topk", "hard_threshold", "micro", "exdyna", "cltk"):
            least = bare_sum_s()
            found, *alone = timed(Reducers(name, gradients, range(n)), few, many)
            same, *processes = in_processes(n, trace, name, few, many)
            if same != found:
                sys.exit(f"{name}: torch selects {found} in one process, {same} in {n}")
            line = f"{name:16} " + " ".join(f"{1e3 * s[0]:9.2f} ({1e3 * s[1]:8.2f})" for s in (processes, alone))
            for norms in (True, False):
                records, long_wall, long_processor = replay(program, str(trace), name, n, threads, many, norms)
                _, short_wall, short_processor = replay(program, str(trace), name, n, threads, few, norms)
                for t, (record, counts) in enumerate(zip(records, found)):
                    if (record["selected_sum"], record["union"]) != counts:
                        sys.exit(f"{name}, iteration {t}: torch selects {counts}, the replay {record['selected_sum'], record['union']}")
                own = (long_processor - short_processor) / (many - few)
                own_wall = (long_wall - short_wall) / (many - few)
                line += f" {1e3 * own:9.2f} ({1e3 * own_wall:6.2f}) {processes[0] / own:7.1f} {alone[0] / own:7.1f}"
            least = min(least, bare_sum_s())
            print(f"{line} {processes[0] / least:15.1f} {alone[0] / least:7.1f}", flush=True)


if __name__ == "__main__":
    main()
