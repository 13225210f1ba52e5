"""Gradients to disk, iteration by iteration: one file per worker and window.

While a window is captured, `worker-R.part` grows by one gradient per iteration and `worker-R.jsonl` by one line after it, when the gradient
is on disk. Closing turns the two into `worker-R.safetensors` by truncating to the last line, appending the scales and writing the header
into the room left for it: nothing is copied. A job that is killed leaves both files, and finish() closes them later.
"""

import json
import os
import struct

import numpy

HEADER_BYTES = 1024  # room in front of the data, a multiple of 8
DTYPES = {"F32": 4, "F16": 2, "BF16": 2}


def encode(values, dtype):
    """(bytes to store, scale): float32 values as F32, F16 with a power of two that brings the largest magnitude to [2^14, 2^15), or BF16
    (round to nearest even). The gradient is stored / scale."""
    if dtype == "F32":
        return values.astype("<f4", copy=False), 1.0
    if dtype == "F16":
        largest = float(numpy.max(numpy.abs(values), initial=0.0, where=numpy.isfinite(values)))
        scale = 1.0
        if largest > 0:
            scale = float(2.0 ** min(max(14 - (numpy.frexp(largest)[1] - 1), -126), 127))
        with numpy.errstate(over="ignore"):
            return (values * numpy.float32(scale)).astype("<f2"), scale
    if dtype == "BF16":
        bits = values.view(numpy.uint32)
        rounded = ((bits.astype(numpy.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        return numpy.where(numpy.isnan(values), numpy.uint16(0x7FC0), rounded).astype("<u2"), 1.0
    raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, found {dtype}")


class WorkerStream:
    """The file of one worker in one window."""

    def __init__(self, folder, worker, gradients, dtype, residual=None):
        self.base = os.path.join(folder, f"worker-{worker}")
        self.dtype = dtype
        self.gradients = gradients
        os.makedirs(folder, exist_ok=True)
        # Never over an unfinished capture: finish() or remove it first.
        self.data = open(self.base + ".part", "xb")
        self.log = open(self.base + ".jsonl", "x", encoding="utf-8")
        self.data.write(b"\0" * HEADER_BYTES)
        if residual is not None:
            self.data.write(residual.astype("<f4").tobytes())
        self._log({"worker": worker, "gradients": gradients, "dtype": dtype, "residual": residual is not None})

    def _log(self, record):
        self.data.flush()  # the gradient first: a line says that it is there
        self.log.write(json.dumps(record) + "\n")
        self.log.flush()

    def append(self, record, values):
        """One iteration: what is known of it, and its N float32 values."""
        stored, scale = encode(values, self.dtype)
        self.data.write(stored.tobytes())
        self._log({**record, "scale": scale})

    def close(self):
        self.data.close()
        self.log.close()


def read_log(file):
    """(head, records): a last line that was not finished is left out."""
    with open(file, encoding="utf-8") as log:
        lines = log.read().split("\n")[:-1]
    records = [json.loads(line) for line in lines]
    return (records[0], records[1:]) if records else (None, [])


def seal(base, head, records):
    """Turns base.part into base.safetensors with exactly these iterations. Can be repeated after a kill at any point."""
    gradients, width, count = head["gradients"], DTYPES[head["dtype"]], len(records)
    start = HEADER_BYTES
    header, at = {}, 0
    if head["residual"]:
        header["residual"] = {"dtype": "F32", "shape": [1, gradients], "data_offsets": [0, 4 * gradients]}
        at = 4 * gradients
    header["grad"] = {"dtype": head["dtype"], "shape": [count, 1, gradients], "data_offsets": [at, at + count * gradients * width]}
    at += count * gradients * width
    scales = b""
    if head["dtype"] == "F16":
        scales = numpy.array([record["scale"] for record in records], dtype="<f4").tobytes()
        header["scale"] = {"dtype": "F32", "shape": [count], "data_offsets": [at, at + len(scales)]}
    text = json.dumps(header).encode().ljust(HEADER_BYTES - 8)
    with open(base + ".part", "r+b") as data:
        data.seek(0, os.SEEK_END)
        if data.tell() < start + at:
            raise ValueError(f"{base}.part: expected at least {start + at} bytes as {base}.jsonl says, found {data.tell()}")
        data.truncate(start + at)
        data.seek(start + at)
        data.write(scales)
        data.seek(0)
        data.write(struct.pack("<Q", HEADER_BYTES - 8) + text)
        data.flush()
        os.fsync(data.fileno())
    os.replace(base + ".part", base + ".safetensors")
