#!/usr/bin/env python3
"""One page from a measured GPU profile: every operation's bytes per second as a fraction of a device-to-device copy of the same size."""
import json
import pathlib
import sys


def main():
    if len(sys.argv) != 2:
        print("usage: gpu_summary.py PROFILE.json", file=sys.stderr)
        return 2
    profile = json.loads(pathlib.Path(sys.argv[1]).read_text())
    records = profile["records"]
    # A copy moves its bytes twice, once each way; that is what its record says.
    copies = {record["elements"]: record["bytes"] / record["median_s"] for record in records if record["operation"] == "copy"}
    sizes = sorted(size for size in copies if size >= 1 << 20)
    print(f"{profile['device']}: bytes that an operation must move, per second, over those of a copy of as many elements")
    print()
    print("| operation | density | " + " | ".join(f"N = {size / 1e6:.1f} M" for size in sizes) + " |")
    print("|---|---|" + "---|" * len(sizes))
    print("| copy, GB/s | | " + " | ".join(f"{copies[size] / 1e9:.0f}" for size in sizes) + " |")
    cells = {}
    for record in records:
        size, selected = record["elements"], record["selected"]
        if size not in sizes or record["operation"] == "copy":
            continue
        density = selected / size
        wanted = next((d for d in (0.0001, 0.001, 0.01, 0.1) if abs(density - d) < 0.02 * d), None)
        if density == 1:
            wanted = 1
        if wanted is not None:
            cells[record["operation"], wanted, size] = (record["median_s"], record["bytes"] / record["median_s"] / copies[size])
    for operation, density in sorted({key[:2] for key in cells}):
        row = []
        for size in sizes:
            time_s, fraction = cells.get((operation, density, size), (None, None))
            row.append("" if time_s is None else f"{1e6 * time_s:.0f} us, {fraction:.2f}")
        print(f"| {operation} | {density if density < 1 else ''} | " + " | ".join(row) + " |")
    goals = [cells.get((operation, 0.01, size)) for operation in ("accumulate_select", "accumulate_topk") for size in sizes[-1:]]
    if all(goals):
        print()
        print(f"accumulate_select and accumulate_topk at density 0.01, N = {sizes[-1] / 1e6:.0f} M: {goals[0][1]:.2f} and {goals[1][1]:.2f} "
              "of the copy (wanted: 0.8)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
