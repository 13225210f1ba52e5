"""Makes a result directory for the tests. NOT measurements: every number comes from the closed forms below, which only resemble
a real experiment closely enough to draw (several sparsifiers, captured, projected and unvalidated n, crossings with the baselines)."""
import csv
import json
import math
import os

KEYS = ["run_id", "metric_group", "trace", "sparsifier", "parameters", "density", "workers", "captured_workers", "expansion", "expansion_requested", "validated",
        "platform", "profile", "network", "all_gather", "all_reduce", "broadcast", "seed", "counts_origin", "kernel_times_origin", "compute_times_origin", "iterations", "warmup_iterations"]
SELECTION = ["target_k", "selected_sum_mean", "selected_max_mean", "union_mean", "actual_density_mean", "actual_density_p05",
             "actual_density_p95", "build_up_mean", "build_up_p05", "build_up_p95", "build_up_calibrated_mean", "padding_mean",
             "padding_p05", "padding_p95", "threshold_mean", "residual_norm_mean", "energy_exchanged_mean"]
TIME = ["iteration_time_s_mean", "iteration_time_s_p05", "iteration_time_s_p95", "forward_backward_time_s", "selection_time_s",
        "index_exchange_time_s", "value_exchange_time_s", "other_time_s", "speed_up"]
TRAFFIC = ["bytes_sent_per_worker_mean", "bytes_sent_per_worker_max", "messages_mean"]
LINKS = ["device_link_bytes_mean", "nic_bytes_mean", "network_link_bytes_mean", "global_link_bytes_mean"]
COLUMNS = KEYS + SELECTION + TIME + TRAFFIC

GRADIENTS = 14_700_000
SPARSIFIERS = ("topk", "hard_threshold", "sage", "deft", "micro", "exdyna")
WORKERS = (2, 4, 8, 16, 32, 64, 128, 256)
# Name: bytes per second of a link, latency in seconds, forward and backward in seconds.
PLATFORMS = {"ethernet-10g": (1.25e9, 25e-6, 0.060), "hdr-nvlink": (25e9, 4e-6, 0.060)}


def selection(sparsifier, density, n, seed):
    """Mean, low and high of build-up, padding, and gradients selected by one worker, as functions of n."""
    k = int(density * GRADIENTS)
    wobble = 1 + 0.01 * (seed - 1)
    up, spread, padding, each = {
        "topk": (min(n ** 0.78, 0.9 / density), 0.06, 1.0, k),
        "hard_threshold": (1.9 * n ** 0.45, 0.35, 1.0 + 0.12 * math.log2(n), 1.6 * k),
        "sage": (1.05 * (1 + 0.01 * math.log2(n)), 0.15, 1.15 + 0.08 * math.log2(n), 1.3 * k / n),
        "deft": (1.02, 0.02, 1.05 + 0.02 * n ** 0.8, k / n),
        "micro": (0.94, 0.12, 1.2 + 0.1 * math.log2(n), k / n),
        "exdyna": (1.0, 0.05, 1.03 + 0.01 * math.log2(n), k / n),
    }.get(sparsifier, (n ** 0.3, 0.1, 1.1, k))
    up = min(up * wobble, GRADIENTS / k)
    return k, up, up * (1 - spread), min(up * (1 + spread), GRADIENTS / k), padding, each * padding


def phases(sparsifier, density, n, platform, seed):
    bandwidth, latency, compute = PLATFORMS[platform]

    def reduce(bytes_):
        return 2 * (n - 1) / n * bytes_ / bandwidth + 2 * math.log2(n) * latency

    if sparsifier == "dense":
        return compute, 0.0, 0.0, reduce(4 * GRADIENTS), 0.0003
    if sparsifier == "dense_fp16":
        return compute, 0.0, 0.0, reduce(2 * GRADIENTS), 0.0006
    k, up, _, _, _, largest = selection(sparsifier, density, n, seed)
    kernel = {"topk": 0.0065, "deft": 0.0065 / n + 0.001}.get(sparsifier, 0.0009)
    return compute, kernel, (n - 1) * 8 * largest / bandwidth + math.log2(n) * latency, reduce(4 * up * k), 0.0004


def make(directory, sparsifiers=SPARSIFIERS, workers=WORKERS, platforms=tuple(PLATFORMS), densities=(0.01,), seeds=(1,), captured_workers=16,
         validated_up_to=64, profiles=("a100-cuda",), parameters=None, dense=("dense", "dense_fp16"), groups=("selection", "time", "traffic"),
         change=None, break_even=True, runs=False, links=False, more=()):
    """Writes results.csv and summary.json; `change(row)` may alter every row (a dict of texts), or drop it by returning None.

    `parameters` maps a sparsifier to a list of parameter texts; `runs` also writes runs/<run_id>.json with the series; `links` the columns of the link classes: of the fixture's machine, 8 devices a node;
    `more` further columns, which `change` fills."""
    columns = COLUMNS + LINKS * links + list(more)
    os.makedirs(directory, exist_ok=True)
    rows, totals = [], {}
    for platform in platforms:
        for profile in profiles:
            for density in densities:
                for seed in seeds:
                    for sparsifier in tuple(dense) + tuple(sparsifiers):
                        for text in (parameters or {}).get(sparsifier, ["{}"]):
                            for n in workers:
                                if sparsifier in dense and density != densities[0]:
                                    continue
                                projected = n > captured_workers
                                common = {
                                    "run_id": f"{len(rows):08x}", "trace": "fixture-lstm", "sparsifier": sparsifier, "parameters": text,
                                    "density": repr(1.0 if sparsifier in dense else density), "workers": n, "captured_workers": captured_workers,
                                    "expansion": "hybrid" if projected else "captured", "expansion_requested": "auto",
                                    "validated": "true" if n <= validated_up_to else "false",
                                    "platform": platform, "profile": profile, "network": "recurrence" if n < 64 else "recurrence+simgrid",
                                    "all_gather": "ring", "all_reduce": "ring", "broadcast": "binomial", "seed": seed, "counts_origin": "projected" if projected else "captured",
                                    "kernel_times_origin": "measured", "compute_times_origin": "assumed (fixture)", "iterations": 20, "warmup_iterations": 5}
                                for group in groups:
                                    row = dict.fromkeys(columns, "")
                                    row.update(common, metric_group=group)
                                    row.update(numbers(group, sparsifier, density, n, platform, seed, text, dense, projected))
                                    if links and group == "traffic":
                                        each = float(row["bytes_sent_per_worker_mean"])
                                        row.update(device_link_bytes_mean=repr(2 * each * n), nic_bytes_mean=repr(2 * each * n / 8 if n > 8 else 0.0), network_link_bytes_mean="0.0",
                                                   global_link_bytes_mean="0.0")
                                    if group == "time":
                                        totals[platform, profile, density, seed, sparsifier, text, n] = float(row["iteration_time_s_mean"])
                                    row = change(row) if change else row
                                    if runs and row is not None and group == "selection":
                                        write_run(directory, row)
                                    if row is not None:
                                        rows.append(row)
    with open(os.path.join(directory, "results.csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    entries = []
    for key in dict.fromkeys(k[:6] for k in totals):
        if key[4] not in dense and break_even:
            entries += [crossing(totals, key, baseline, densities[0], workers, captured_workers) for baseline in dense]
    with open(os.path.join(directory, "summary.json"), "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "break_even": entries, "warnings": [], "lines": []}, file, indent=1)
    return directory


def write_run(directory, row):
    """A run's series: every quantity wobbles around its mean."""
    os.makedirs(os.path.join(directory, "runs"), exist_ok=True)
    series = {}
    for name, column in (("padding", "padding_mean"), ("density", "actual_density_mean"), ("threshold", "threshold_mean")):
        dense = name == "threshold" and row["sparsifier"].startswith("dense")
        series[name] = [None if dense else float(row[column]) * (1 + 0.05 * math.sin(i + len(row["sparsifier"]))) for i in range(row["iterations"])]
    with open(os.path.join(directory, "runs", row["run_id"] + ".json"), "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "run_id": row["run_id"], "series": series}, file)


def numbers(group, sparsifier, density, n, platform, seed, text, dense, projected):
    scale = 1.25 if text != "{}" else 1.0
    if group == "selection":
        if sparsifier in dense:
            k, up, low, high, padding, largest = GRADIENTS, 1.0, 1.0, 1.0, 1.0, GRADIENTS
        else:
            k, up, low, high, padding, largest = selection(sparsifier, density, n, seed)
            up, low, high = up * scale, low * scale, high * scale
        values = {"target_k": k, "selected_sum_mean": largest * n / padding, "selected_max_mean": largest, "union_mean": up * k,
                  "build_up_mean": up, "build_up_p05": low, "build_up_p95": high, "padding_mean": padding, "padding_p05": padding * 0.95,
                  "padding_p95": padding * 1.08, "threshold_mean": 0.0125, "residual_norm_mean": 1.75,
                  "energy_exchanged_mean": 1.0 if sparsifier in dense else min(1.0, up * k / GRADIENTS * (4 + len(sparsifier)))}
        values.update({f"actual_density_{q}": values[f"build_up_{q}"] * k / GRADIENTS for q in ("mean", "p05", "p95")})
        if projected:
            values["build_up_calibrated_mean"] = up * 1.03
    elif group == "time":
        parts = [part * (scale if i == 1 else 1) for i, part in enumerate(phases(sparsifier, density, n, platform, seed))]
        total = sum(parts)
        values = dict(zip(TIME[3:8], parts))
        values.update(iteration_time_s_mean=total, iteration_time_s_p05=total * 0.97, iteration_time_s_p95=total * 1.05,
                      speed_up=n * PLATFORMS[platform][2] / total)
    else:
        values = {"bytes_sent_per_worker_mean": 1e6 * n, "bytes_sent_per_worker_max": 1.1e6 * n, "messages_mean": 2 * n}
    return {column: repr(value) for column, value in values.items()}


def crossing(totals, key, baseline, first_density, workers, captured_workers):
    platform, profile, density, seed, sparsifier, text = key
    mine = [totals[key + (n,)] for n in workers]
    theirs = [totals[platform, profile, first_density, seed, baseline, "{}", n] for n in workers]
    gap = [math.log(a / b) for a, b in zip(mine, theirs)]
    points = []
    for i in range(len(workers) - 1):
        if gap[i] * gap[i + 1] < 0:
            share = gap[i] / (gap[i] - gap[i + 1])
            points.append({"workers": workers[i] * (workers[i + 1] / workers[i]) ** share, "direction": "wins_above" if gap[i] > 0 else "wins_below"})
    return {"trace": "fixture-lstm", "all_reduce": "ring", "broadcast": "binomial", "captured_workers": captured_workers, "platform": platform, "profile": profile, "sparsifier": sparsifier, "parameters": text, "density": density, "baseline": baseline,
            "all_gather": "ring", "seed": seed, "points": points, "wins_at": [n for n, g in zip(workers, gap) if g < 0],
            "loses_at": [n for n, g in zip(workers, gap) if g > 0]}
