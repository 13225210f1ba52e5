"""Forward and backward time per layer.

Forward: a module that owns parameters takes the time from its start to the start of the next such module, so the layers add up to the whole
model; its first parameter carries it. Backward: a parameter takes the time since the gradient before it was ready, beginning when the
gradient of the model's output is.
"""

import time

import torch


class _Clock:
    """Marks: on a GPU events of the current stream, else the time of the processor."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"

    def mark(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first, last):
        return first.elapsed_time(last) / 1000 if self.cuda else last - first


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class LayerTimer:
    """Times `model` whose trainable parameters are `parameters`, in order. take() gives and forgets what was measured since."""

    def __init__(self, model, parameters):
        self.clock = _Clock(parameters[0].device)
        self.count = len(parameters)
        self.forward, self.backward = [], []  # runs of marks: [(layer, mark), ...]; layer None closes a run
        self.active = False
        self.hooks = []
        index = {id(parameter): i for i, parameter in enumerate(parameters)}
        for module in model.modules():
            own = [index[id(parameter)] for parameter in module.parameters(recurse=False) if id(parameter) in index]
            if own:
                self.hooks.append(module.register_forward_pre_hook(self._module_starts(min(own))))
        self.hooks.append(model.register_forward_pre_hook(self._model_starts))
        self.hooks.append(model.register_forward_hook(self._model_ends))
        for parameter in parameters:
            self.hooks.append(parameter.register_hook(self._gradient_ready(index[id(parameter)])))

    def _model_starts(self, module, inputs):
        if self.active:
            self.forward.append([(None, self.clock.mark())])

    def _module_starts(self, layer):
        def hook(module, inputs):
            if self.active and self.forward:
                self.forward[-1].append((layer, self.clock.mark()))
        return hook

    def _model_ends(self, module, inputs, outputs):
        if not self.active or not self.forward:
            return
        self.forward[-1].append((None, self.clock.mark()))
        for tensor in _tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._backward_starts)
                break

    def _backward_starts(self, gradient):
        if self.active:
            self.backward.append([(None, self.clock.mark())])

    def _gradient_ready(self, layer):
        def hook(gradient):
            if self.active and self.backward:
                self.backward[-1].append((layer, self.clock.mark()))
        return hook

    def take(self):
        """(forward, backward): seconds per layer, added over the runs since the last call; None where nothing was measured."""
        if self.clock.cuda:
            torch.cuda.synchronize()
        forward = [0.0] * self.count if any(len(run) > 2 for run in self.forward) else None
        for run in self.forward if forward is not None else []:
            for i in range(1, len(run) - 1):
                # What comes before the first layer belongs to it.
                start = run[0][1] if i == 1 else run[i][1]
                forward[run[i][0]] += self.clock.seconds(start, run[i + 1][1])
        backward = [0.0] * self.count if any(len(run) > 1 for run in self.backward) else None
        for run in self.backward if backward is not None else []:
            for i in range(1, len(run)):
                backward[run[i][0]] += self.clock.seconds(run[i - 1][1], run[i][1])
        self.forward, self.backward = [], []
        return forward, backward

    def close(self):
        for hook in self.hooks:
            hook.remove()
