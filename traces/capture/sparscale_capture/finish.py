"""Makes traces of what a capture left on disk: after the last iteration, or after a job was killed."""

import glob
import hashlib
import json
import os
import re
import statistics

from sparscale_capture import stream


def _sha256(file):
    digest = hashlib.sha256()
    with open(file, "rb") as data:
        for block in iter(lambda: data.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _write_atomic(file, text):
    with open(file + ".tmp", "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(file + ".tmp", file)


def _median_times(records, key):
    """Per layer, the median over the iterations and workers that have it; None without any."""
    times = [record[key] for worker in records for record in worker if record.get(key) is not None]
    return [statistics.median(column) for column in zip(*times)] if times else None


def finish_window(folder):
    """Makes a trace of one window: the iterations that all workers finished. Returns their number; 0 (and no trace) without any."""
    with open(os.path.join(folder, "capture.json"), encoding="utf-8") as file:
        capture = json.load(file)
    workers = capture["workers"]
    heads, records = [], []
    for worker in range(workers):
        base = os.path.join(folder, f"worker-{worker}")
        head, lines = stream.read_log(base + ".jsonl") if os.path.exists(base + ".jsonl") else (None, [])
        if head is None:
            return 0
        heads.append(head)
        records.append(lines)
    count = min(len(lines) for lines in records)
    if count == 0:
        return 0
    records = [lines[:count] for lines in records]
    iterations = [record["iteration"] for record in records[0]]
    for lines in records:
        if [record["iteration"] for record in lines] != iterations:
            raise ValueError(f"{folder}: expected the same iterations from every worker")
    files = []
    for worker in range(workers):
        base = os.path.join(folder, f"worker-{worker}")
        if os.path.exists(base + ".part"):
            stream.seal(base, heads[worker], records[worker])
        file = base + ".safetensors"
        files.append({"path": os.path.basename(file), "workers": [worker, worker + 1], "iterations": [0, count],
                      "bytes": os.path.getsize(file), "sha256": _sha256(file)})
    manifest = {**capture["manifest"], "workers": workers, "iterations": iterations}
    if all(record["learning_rate"] is not None for record in records[0]):
        manifest["learning_rate"] = [record["learning_rate"] for record in records[0]]
    if all(record["loss"] is not None for lines in records for record in lines):
        manifest["loss"] = [[lines[t]["loss"] for lines in records] for t in range(count)]
    scales = [record["loss_scale"] for record in records[0]]
    if any(scale != 1 for scale in scales):
        manifest["loss_scale"] = scales
    for key in ("forward_time_s", "backward_time_s"):
        times = _median_times(records, key)
        if times is not None:
            manifest[key] = times
            manifest["timing_device"] = capture["timing_device"]
    manifest["files"] = files
    _write_atomic(os.path.join(folder, "trace.json"), json.dumps(manifest, indent=1) + "\n")
    os.remove(os.path.join(folder, "capture.json"))
    for worker in range(workers):
        os.remove(os.path.join(folder, f"worker-{worker}.jsonl"))
    return count


def finish(folder):
    """Finishes every window under `folder` that is not a trace yet. Call it when no job writes there any more. Returns [(folder of the
    trace, iterations)]."""
    done = []
    for capture in sorted(glob.glob(os.path.join(glob.escape(folder), "**", "capture.json"), recursive=True),
                          key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]):
        window = os.path.dirname(capture)
        count = finish_window(window)
        if count > 0:
            done.append((window, count))
    return done
