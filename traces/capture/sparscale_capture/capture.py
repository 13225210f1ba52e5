"""The capture itself: a DDP communication hook, or a loop over virtual workers in one process."""

import contextlib
import json
import os
import struct
import sys

import numpy
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from sparscale_capture import stream
from sparscale_capture.finish import finish_window
from sparscale_capture.layout import Layout
from sparscale_capture.timing import LayerTimer
from sparscale_capture.windows import checked

GRADIENT_POINT = "local mini-batch gradient (mean loss), before averaging, momentum, clipping, weight decay; unscaled"


class Capture:
    """Captures the local gradients of the trainable parameters of `model`, in named_parameters() order.

    model       DistributedDataParallel: its communication hook is set (to one that captures and then calls `hook`); every rank is one
                worker. Any other module: `workers` virtual workers in this process, see worker().
    folder      of the traces: one per window, `folder/iteration-START`; `folder` itself with one window. "-": a stream on standard output
                for `sparscale replay --trace -` (rank 0 collects the gradients of all ranks), nothing is stored.
    windows     list of (first iteration, number of iterations); see early_middle_late() and every().
    dtype       F32, F16 (with a power of two as scale per iteration) or BF16.
    rows        share of the rows to keep in layers of 1,024 elements or more; `seed` chooses them.
    divide_by   what gradients are divided by, when they are accumulated over micro-batches of which each has its own mean loss.
    scaler      torch.cuda.amp.GradScaler or alike (get_scale()): gradients are unscaled; iterations that it skips are not counted.
    residual    function without arguments that gives the residual (error feedback) as {parameter name: tensor}, called when a window starts.
    layer_times record forward and backward time per layer.
    hook        DDP communication hook to call after capturing (default: the all-reduce that DDP does without a hook), with `hook_state`.
    metadata    further keys of trace.json: name, model, dataset, licence, batch_per_worker, optimizer, momentum, data_order, seed, ...
    """

    def __init__(self, model, folder, windows, /, *, workers=None, dtype="F16", rows=1.0, seed=1, divide_by=1.0, scaler=None, residual=None,
                 layer_times=True, hook=default_hooks.allreduce_hook, hook_state=None, **metadata):
        if dtype not in stream.DTYPES:
            raise ValueError(f"dtype: expected one of {', '.join(stream.DTYPES)}, found {dtype}")
        if not divide_by > 0:
            raise ValueError(f"divide_by: expected a number > 0, found {divide_by}")
        self.distributed = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        module = model.module if self.distributed else model
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.layout = Layout([(name, list(parameter.shape)) for name, parameter in named], rows, seed)
        self.index = {id(parameter): i for i, parameter in enumerate(self.parameters)}
        self.module, self.folder, self.windows = module, folder, checked(windows)
        self.dtype, self.divide_by, self.scaler, self.residual = dtype, float(divide_by), scaler, residual
        self.hook, self.metadata = hook, dict(metadata)
        self.group = model.process_group if self.distributed else None
        if self.distributed:
            if workers is not None:
                raise ValueError("workers: expected none, every rank of DistributedDataParallel is one")
            self.workers, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
            # The default hook's state is the process group.
            model.register_comm_hook(self.group if hook_state is None and hook is default_hooks.allreduce_hook else hook_state, self._hook)
        else:
            self.workers, self.rank = int(workers or 1), 0
        self.own = [self.rank] if self.distributed else list(range(self.workers))
        self.rows = [None if entry.rows is None else torch.from_numpy(entry.rows).to(parameter.device)
                     for entry, parameter in zip(self.layout.entries, self.parameters)]
        pinned = self.parameters[0].is_cuda
        self.buffers = [torch.zeros(self.layout.gradients, dtype=torch.float32, pin_memory=pinned) for _ in self.own]
        self.losses = [None] * len(self.own)
        # Batch-norm statistics of every virtual worker.
        self.module_buffers = [] if self.distributed else [{name: value.detach().clone() for name, value in module.named_buffers()}
                                                           for _ in range(self.workers)]
        self.sums = None
        self.seen = set()
        self.times = [(None, None)] * len(self.own)
        self.timer = LayerTimer(module, self.parameters) if layer_times else None
        self.timing_device = "CPU"
        if pinned:
            self.timing_device = torch.cuda.get_device_name(self.parameters[0].device)
        self.iteration = 0
        self.streams = None
        self.out = None
        self._arm()

    # What is captured.

    def _window(self):
        for start, length in self.windows:
            if start <= self.iteration < start + length:
                return start, length
        return None

    def _arm(self):
        self.active = self._window() is not None
        if self.timer is not None:
            self.timer.active = self.active
        if self.active and self.iteration == self._window()[0]:
            self._open()

    def _take(self, slot, index, gradient):
        """Copies the kept rows of one parameter's gradient."""
        entry, rows = self.layout.entries[index], self.rows[index]
        gradient = gradient.detach()
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        gradient = gradient.reshape(entry.full_shape)
        if rows is not None:
            gradient = gradient.index_select(0, rows)
        self.buffers[slot][entry.offset:entry.offset + entry.size].copy_(gradient.reshape(-1), non_blocking=True)

    def _hook(self, state, bucket):
        if self.active:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                index = self.index[id(parameter)]
                self._take(0, index, gradient)
                self.seen.add(index)
        return self.hook(state, bucket)

    @contextlib.contextmanager
    def worker(self, worker):
        """Forward and backward of virtual worker 0..workers-1 at the common parameters, with buffers (batch-norm statistics) of its own.
        All workers before step(), which leaves their mean in .grad. Yields a function to report the loss with."""
        if self.distributed or not 0 <= worker < self.workers:
            raise ValueError(f"worker: expected 0 to {self.workers - 1} in a process without DistributedDataParallel, found {worker}")
        buffers = dict(self.module.named_buffers())
        if self.workers > 1:
            for name, value in buffers.items():
                value.data.copy_(self.module_buffers[worker][name])
        if self.sums is None:
            self.sums = [torch.zeros_like(parameter) for parameter in self.parameters]
            self.done = set()
        if worker in self.done:
            raise ValueError(f"worker: expected every worker once in an iteration, found {worker} twice")
        for parameter in self.parameters:
            parameter.grad = None

        def report(loss):
            self.losses[worker] = float(loss)

        yield report
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self.sums[index] += parameter.grad
        if self.active:
            self._take_all(worker)
            if self.timer is not None:
                self.times[worker] = self.timer.take()
        self.done.add(worker)
        for name, value in buffers.items():
            self.module_buffers[worker][name].copy_(value.detach())

    def _take_all(self, slot):
        for index, parameter in enumerate(self.parameters):
            entry = self.layout.entries[index]
            if parameter.grad is None:
                self.buffers[slot][entry.offset:entry.offset + entry.size].zero_()
            else:
                self._take(slot, index, parameter.grad)

    def step(self, loss=None, learning_rate=None):
        """Ends an iteration: call after backward() and before the optimizer's (and scaler's) step. `loss`: of this rank; with virtual
        workers, of worker 0 when there is one, else report it inside worker()."""
        if not self.distributed:
            if self.sums is None and self.workers == 1:
                if self.active:
                    self._take_all(0)
            elif self.sums is None or len(self.done) != self.workers:
                raise ValueError(f"step: expected a backward pass of every one of the {self.workers} virtual workers before it")
            else:
                for parameter, total in zip(self.parameters, self.sums):
                    parameter.grad = total.div_(self.workers)
                self.sums = None
        if loss is not None:
            self.losses[0] = float(loss)
        scale = float(self.scaler.get_scale()) if self.scaler is not None else 1.0
        if self.scaler is not None and not self._all_finite():
            # The scaler skips this step: no parameter changes, so it is no iteration of the training.
            self._forget()
            self._arm_again()
            return
        if self.active:
            self._store(learning_rate, scale)
        self._forget()
        window = self._window()
        self.iteration += 1
        if window is not None and self.iteration == sum(window):
            self._close_window()
        self._arm()

    def _arm_again(self):
        if self.timer is not None:
            self.timer.take()

    def _forget(self):
        self.seen.clear()
        self.losses = [None] * len(self.own)
        self.times = [(None, None)] * len(self.own)

    def _all_finite(self):
        return all(bool(torch.isfinite(parameter.grad).all()) for parameter in self.parameters if parameter.grad is not None)

    def _store(self, learning_rate, scale):
        if self.parameters[0].is_cuda:
            torch.cuda.current_stream().synchronize()
        if self.distributed:
            if not self.seen:
                raise ValueError("step: expected a backward pass with gradient synchronisation before it (the last micro-batch must not be "
                                 "under no_sync())")
            for index in set(range(len(self.parameters))) - self.seen:
                entry = self.layout.entries[index]
                self.buffers[0][entry.offset:entry.offset + entry.size].zero_()
        if self.timer is not None and (self.distributed or self.times[0] == (None, None)):
            self.times[0] = self.timer.take()
        divisor = numpy.float32(scale * self.divide_by)
        if self.out is not None or self.folder == "-":
            self._send(learning_rate, divisor)
            return
        for slot, _ in enumerate(self.own):
            values = self.buffers[slot].numpy()
            if divisor != 1:
                values = values / divisor
            forward, backward = self.times[slot]
            self.streams[slot].append({"iteration": self.iteration, "learning_rate": learning_rate, "loss": self.losses[slot],
                                       "loss_scale": scale, "forward_time_s": forward, "backward_time_s": backward}, values)

    # Where it goes.

    def _manifest(self):
        manifest = {"schema_version": 1, "name": "capture", **self.metadata,
                    "gradients": self.layout.gradients, "layers": [entry.manifest() for entry in self.layout.entries],
                    "gradient_point": GRADIENT_POINT, "framework": "PyTorch " + torch.__version__}
        if self.layout.full_gradients != self.layout.gradients:
            manifest["full_gradients"] = self.layout.full_gradients
        return manifest

    def _window_folder(self):
        if len(self.windows) == 1:
            return self.folder
        return os.path.join(self.folder, f"iteration-{self._window()[0]}")

    def _open(self):
        if self.folder == "-":
            return
        folder = self.open_folder = self._window_folder()
        os.makedirs(folder, exist_ok=True)
        if self.rank == 0:
            if os.path.exists(os.path.join(folder, "trace.json")) or os.path.exists(os.path.join(folder, "capture.json")):
                raise FileExistsError(f"{folder}: expected a folder without a trace or an unfinished capture")
            with open(os.path.join(folder, "capture.json.tmp"), "w", encoding="utf-8") as file:
                json.dump({"workers": self.workers, "timing_device": self.timing_device, "manifest": self._manifest()}, file)
            os.replace(os.path.join(folder, "capture.json.tmp"), os.path.join(folder, "capture.json"))
        residual = None
        if self.residual is not None:
            given = self.residual()
            parts = []
            for name, entry in zip(self.names, self.layout.entries):
                values = given[name].detach().cpu().numpy().reshape(entry.full_shape).astype(numpy.float32)
                parts.append((values if entry.rows is None else values[entry.rows]).reshape(-1))
            residual = numpy.concatenate(parts)
        self.streams = [stream.WorkerStream(folder, worker, self.layout.gradients, self.dtype, residual) for worker in self.own]

    def _close_window(self):
        """All ranks close their file; then rank 0 writes the manifest."""
        if self.streams is None:
            return
        for worker_stream in self.streams:
            worker_stream.close()
        self.streams = None
        if self.distributed:
            dist.barrier(self.group)
        if self.rank == 0:
            finish_window(self.open_folder)

    def _send(self, learning_rate, divisor):
        """One frame of the stream (docs/formats.md)."""
        values = [buffer / float(divisor) if divisor != 1 else buffer for buffer in self.buffers]
        if self.distributed:
            own = values[0].to(self.parameters[0].device)  # where this backend can send it from
            parts = [torch.zeros_like(own) for _ in range(self.workers)]
            dist.all_gather(parts, own, group=self.group)
            values = [part.cpu() for part in parts]
        if self.rank != 0:
            return
        if self.out is None:
            self.out = sys.stdout.buffer
            self._frame({**self._manifest(), "workers": self.workers})
        record = {"iteration": self.iteration, "dtype": self.dtype}
        stored, scale = stream.encode(torch.stack(list(values)).numpy(), self.dtype)
        if self.dtype == "F16":
            record["scale"] = scale
        if learning_rate is not None:
            record["learning_rate"] = learning_rate
        self._frame(record)
        self.out.write(stored.tobytes())
        self.out.flush()

    def _frame(self, record):
        text = json.dumps(record).encode()
        self.out.write(struct.pack("<Q", len(text)) + text)

    def close(self):
        """After the training: makes a trace of a window that was not complete, and removes the timing hooks."""
        if self.streams is not None:
            self._close_window()
        if self.out is not None:
            self.out.write(struct.pack("<Q", 0))
            self.out.flush()
        if self.timer is not None:
            self.timer.close()
        self.active = False
