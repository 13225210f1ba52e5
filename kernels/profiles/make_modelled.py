#!/usr/bin/env python3
"""Writes the modelled GPU profiles that ship with sparscale, from byte counts and public numbers.

time = launches * launch_latency + bytes / (bandwidth * efficiency)

A modelled profile is a floor with stated losses, not a measurement: measure the device when you have it
(sparscale measure --device cuda). Run in this folder; the output is the same on every machine.
"""
import json

LAUNCH_S = 3e-6  # one kernel on an idle stream, from the call to its end: 2 to 4 us on all three devices
# Streaming kernels reach 75 to 90 % of the data sheet's bandwidth (copy kernels of vendor samples and of STREAM ports).
STREAM_EFFICIENCY = 0.85
# A radix sort moves its bytes at a lower rate than a copy: scattered writes of short runs.
SORT_EFFICIENCY = 0.70

DEVICES = {
    "v100-modelled": ("NVIDIA V100 SXM2 32 GB", 900e9, "NVIDIA V100 data sheet: 900 GB/s"),
    "a100-modelled": ("NVIDIA A100 SXM4 80 GB", 2039e9, "NVIDIA A100 data sheet: 2,039 GB/s (80 GB)"),
    "h100-modelled": ("NVIDIA H100 SXM5 80 GB", 3350e9, "NVIDIA H100 data sheet: 3.35 TB/s"),
}
SIZES = [1, 32] + [256 * 4**i for i in range(12)]  # to 2^30
DENSITIES = [0, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 1]


def counts(elements, densities, least):
    return sorted({max(least, min(elements, round(d * elements))) for d in densities} | {least, elements})


# bytes and launches of each operation; n elements, k selected. A scattered access moves one sector of 32 bytes.
def accumulate(n, k):
    return 12 * n, 1


def threshold_select(n, k):  # one pass, written in order (decoupled look-back), plus the read-back of the count
    return 4 * n + 8 * k, 2


def topk_radix_sort(n, k):
    # keys: read 4n, write keys and indices 8n; then CUB's DeviceRadixSort pairs: histogram 4n, four passes of 16n; then sort the k
    # indices (int32, four passes of 8k plus histogram)
    return 12 * n + 68 * n + 36 * k, 1 + 6 + 6


def topk_sampled(n, k):  # a bound from a sample, one filter pass, exact selection among the candidates
    return 4 * n + 48 * k, 8


def topk_radix_select(n, k):  # three histograms of all keys' digits, then a pass that writes
    return 16 * n + 24 * k, 9


def accumulate_select(n, k):
    return 12 * n + 24 * k, 5


def accumulate_topk(n, k):
    return 12 * n + 48 * k, 9


def zero(n, k):
    return (8 + 64) * n, 1


def gather(n, k):
    return (8 + 32 + 4) * n, 1


def unite_sort_unique(n, k):
    # what the training code does: concatenate int64 indices (16n), radix sort of 8-byte keys (histogram 8n, eight passes of 16n), unique
    return 16 * n + 8 * n + 8 * 16 * n + 8 * n + 8 * k, 1 + 10 + 2


def unite_bitmap(n, k):  # one bit for each of 32 elements per listed index, set with atomics (a sector each), then scanned
    return (8 + 64) * n + 4 * n + 8 * k, 4


def cast_half(n, k):  # one cast, to half (4n + 2n) or back (2n + 4n)
    return 6 * n, 1


def read_only(n, k):
    return 4 * n, 2


OPERATIONS = [
    ("accumulate", accumulate, "stream", "elements"),
    ("threshold_select", threshold_select, "stream", "densities"),
    ("topk", topk_radix_sort, "sort", "positive"),
    ("topk.sort", topk_radix_sort, "sort", "positive"),
    ("topk.radix", topk_radix_select, "stream", "positive"),
    ("topk.sampled", topk_sampled, "stream", "positive"),
    ("accumulate_select", accumulate_select, "stream", "densities"),
    ("accumulate_topk", accumulate_topk, "stream", "positive"),
    ("count", read_only, "stream", "elements"),
    ("zero", zero, "stream", "elements"),
    ("gather", gather, "stream", "elements"),
    ("unite", unite_sort_unique, "sort", "positive"),
    ("unite.bitmap", unite_bitmap, "stream", "positive"),
    ("cast_half", cast_half, "stream", "elements"),
    ("l2_norm", read_only, "stream", "elements"),
]


def record(operation, elements, selected, time_s, bytes_):
    return {"operation": operation, "backend": "model", "elements": elements, "selected": selected,
            "density": selected / elements, "median_s": time_s, "q25_s": time_s, "q75_s": time_s, "bytes": bytes_}


def records(bandwidth):
    result = []
    for operation, cost, kind, grid in OPERATIONS:
        rate = bandwidth * (STREAM_EFFICIENCY if kind == "stream" else SORT_EFFICIENCY)
        for n in SIZES:
            selected = {"elements": [n], "densities": counts(n, DENSITIES, 0), "positive": counts(n, DENSITIES, 1)}[grid]
            for k in selected:
                bytes_, launches = cost(n, k)
                result.append(record(operation, n, k, float(f"{launches * LAUNCH_S + bytes_ / rate:.6g}"), bytes_))
    return result


def write(name, device, provenance, context, list_):
    document = {"schema_version": 1, "name": name, "device": device, "origin": "modelled", "provenance": provenance, "context": context,
                "records": list_}
    text = json.dumps({key: value for key, value in document.items() if key != "records"}, indent=1)
    lines = ",\n".join("  " + json.dumps(entry) for entry in list_)
    with open(name + ".json", "w") as file:
        file.write(text[:-2] + ',\n "records": [\n' + lines + "\n ]\n}\n")


def main():
    model = (f"time = launches x {LAUNCH_S * 1e6:g} us + bytes / (bandwidth x efficiency); efficiency {STREAM_EFFICIENCY} for streaming "
             f"kernels, {SORT_EFFICIENCY} for radix sorts; data in device memory, not in cache; bytes and launches of each operation as in "
             "make_modelled.py. topk and topk.sort: CUB radix sort of (key, index) pairs; topk.radix: histograms of digits; topk.sampled: sampled bound, filter, exact selection; unite: "
             "sort and unique of int64 indices; unite.bitmap: bit set and scan")
    for name, (device, bandwidth, source) in DEVICES.items():
        write(name, device + " (modelled)", f"modelled, never measured: {model}. Bandwidth: {source}",
              {"bandwidth_GBps": bandwidth / 1e9, "launch_us": LAUNCH_S * 1e6, "stream_efficiency": STREAM_EFFICIENCY,
               "sort_efficiency": SORT_EFFICIENCY, "cache_state": "cold"}, records(bandwidth))

    # PyTorch 1.x selected a flat vector with one thread block, so its time grows with N at the rate of a single multiprocessor, and a larger
    # GPU does not help.
    for name, base, rate_s, basis in (
            ("v100-torch-1.x", "v100-modelled", 12.6e-9, "12.6 ns for each element, the mean over a training run of VGG-16 (14,728,266 parameters, 185.1 ms per "
             "selection, 8 V100)"),
            ("a100-torch-1.x", "a100-modelled", 14.4e-9, "14.4 ns for each element, the mean over a training run of VGG-16 (14,728,266 parameters, 211.8 ms per "
             "selection, 8 A100)")):
        device, bandwidth, source = DEVICES[base]
        historic = [entry for entry in records(bandwidth) if entry["operation"] != "topk"]
        for n in SIZES:
            for k in counts(n, DENSITIES, 1):
                bytes_, launches = 16 * n, 6
                historic.append(record("topk", n, k, float(f"{launches * LAUNCH_S + rate_s * n:.6g}"), bytes_))
        write(name, f"{' '.join(device.split()[:2])}, torch.topk of PyTorch 1.5 to 1.10 (modelled)",
              f"topk modelled from published logs, not from bytes: {basis} in the raw logs published with 'Empirical Analysis on Top-k Gradient Sparsification "
              "for Distributed Deep Learning in a Supercomputing Environment' (arXiv 2209.08497). The same authors' logs give 9.5 ns (ResNet-18, "
              "selection per tensor), 11.8 ns (LSTM, 28,949,319 parameters, 340.1 ms) and 12.6 ns (VGG-16) on V100 and 14.4 ns (VGG-16) on A100: take 9.5 to "
              "14.4 ns as its spread. Cause: these versions selected each vector with one thread block. "
              f"All other operations: {model}. Bandwidth: {source}",
              {"bandwidth_GBps": bandwidth / 1e9, "launch_us": LAUNCH_S * 1e6, "stream_efficiency": STREAM_EFFICIENCY,
               "sort_efficiency": SORT_EFFICIENCY, "topk_ns_per_element": round(rate_s * 1e9, 3), "topk_ns_per_element_spread": [9.5, 14.4],
               "cache_state": "cold"}, historic)


if __name__ == "__main__":
    main()
