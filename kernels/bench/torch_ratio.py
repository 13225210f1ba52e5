#!/usr/bin/env python3
"""How many times slower torch.topk and torch.where are than the kernels of sparscale, on this machine.

  kernels/bench/torch_ratio.py                                   one CPU thread; runs build/release/kernels/sparscale_kernel_bench
  kernels/bench/torch_ratio.py --device cuda --profile gpu.json  GPU 0; our times from a profile that sparscale measure wrote

CPU: processor time of one thread, medians. torch allocates its results anew for each call; whether the C library hands the memory back to
the system in between decides over half of its time on some machines, so both are measured: heap reuse off is the C library's default, on is
MALLOC_MMAP_MAX_=0 and MALLOC_TRIM_THRESHOLD_=-1. Ends with 77 when there is no torch to compare with.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
REUSE = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}


def torch_seconds(device, elements, densities, repeats):
    """Median seconds of torch.topk(|x|) and of torch.where(|x| >= t) for each density."""
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    values = torch.empty(elements, device=device).exponential_() * torch.where(torch.rand(elements, device=device) < 0.5, 1.0, -1.0)

    def timed(work):
        work()
        times = []
        for _ in range(repeats):
            if device == "cuda":
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                work()
                stop.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(stop) / 1e3)
            else:
                start = time.process_time()
                work()
                times.append(time.process_time() - start)
        return statistics.median(times)

    result = {"version": torch.__version__, "topk": {}, "where": {}}
    for density in densities:
        k = max(1, int(density * elements))
        magnitudes, _ = torch.topk(values.abs(), k, sorted=False)
        threshold = magnitudes.min()
        del magnitudes
        result["topk"][str(density)] = timed(lambda: torch.topk(values.abs(), k, sorted=False))
        result["where"][str(density)] = timed(lambda: torch.where(values.abs() >= threshold))
    return result


def in_child(arguments, environment):
    output = subprocess.run([sys.executable, __file__, "--child"] + arguments, check=True, stdout=subprocess.PIPE,
                            env={**os.environ, **environment}).stdout
    return json.loads(output)


def our_cpu_seconds(program, elements, densities):
    """Seconds by (operation, density) of the widest back-end, and its ratio to a read."""
    output = subprocess.run([program, "--benchmark_filter=/(topk|threshold_select)/", "--benchmark_format=json"], check=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env={**os.environ, "SPARSCALE_BENCH_ELEMENTS": str(elements)}).stdout
    seconds = {}
    for entry in json.loads(output)["benchmarks"]:  # slowest back-end first, so the last one stays
        backend, operation, density = entry["name"].split("/")[:3]
        if float(density) in densities:
            seconds[operation, float(density)] = (entry["ns_per_element"] * 1e-9 * elements, entry["of_limit"], backend)
    return seconds


def our_gpu_seconds(profile, elements, densities):
    seconds = {}
    for record in json.loads(pathlib.Path(profile).read_text())["records"]:
        for density in densities:
            if record["elements"] == elements and abs(record["selected"] / elements - density) < 0.02 * density:
                seconds[record["operation"], density] = (record["median_s"], None, record["backend"])
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--densities", default="0.01,0.001")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--program", default=str(ROOT / "build/release/kernels/sparscale_kernel_bench"))
    parser.add_argument("--profile")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    densities = [float(text) for text in options.densities.split(",")]
    if options.child:
        json.dump(torch_seconds(options.device, options.elements, densities, options.repeats), sys.stdout)
        return 0
    try:
        import torch
    except ImportError:
        print(f"skipped: {sys.executable} has no torch")
        return 77
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: this torch sees no GPU")
        return 77
    if options.device == "cuda":
        if options.profile is None:
            parser.error("--device cuda needs --profile")
        ours = our_gpu_seconds(options.profile, options.elements, densities)
    else:
        ours = our_cpu_seconds(options.program, options.elements, densities)
    arguments = ["--device", options.device, "--elements", str(options.elements), "--densities", options.densities, "--repeats",
                 str(options.repeats)]
    peers = [("heap reuse off", in_child(arguments, {}))]
    if options.device == "cpu":
        peers.append(("heap reuse on", in_child(arguments, REUSE)))
    print(f"{options.elements} elements, torch {peers[0][1]['version']}, {options.device}")
    print(f"{'operation':28} {'density':>8} {'ns/element':>11} {'times ours':>11}")
    for ours_name, peer_name in (("topk", "topk"), ("threshold_select", "where")):
        for density in densities:
            if (ours_name, density) not in ours:
                continue
            seconds, of_read, backend = ours[ours_name, density]
            note = "" if of_read is None else f"  ({of_read:.2f} of a plain read)"
            print(f"{backend + ' ' + ours_name:28} {density:8g} {seconds * 1e9 / options.elements:11.3f} {1:11.1f}{note}")
            for label, peer in peers:
                time_s = peer[peer_name][str(density)]
                name = f"torch.{peer_name}" + (f", {label}" if len(peers) > 1 else "")
                print(f"{name:28} {density:8g} {time_s * 1e9 / options.elements:11.3f} {time_s / seconds:11.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
