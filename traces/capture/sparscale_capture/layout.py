"""Where every parameter lies in the flattened gradient, and which of its rows are kept."""

import numpy

# Smaller layers are kept whole: their rows are few and sampling them saves nothing.
SAMPLED_FROM = 1024


class Entry:
    """One layer: `rows` is None where all of it is kept."""

    def __init__(self, name, full_shape, rows, offset):
        self.name = name
        self.full_shape = list(full_shape)
        self.rows = rows
        self.shape = list(full_shape) if rows is None else [len(rows)] + list(full_shape[1:])
        self.size = int(numpy.prod(self.shape, dtype=numpy.int64))
        self.offset = offset

    def manifest(self):
        layer = {"name": self.name, "shape": self.shape, "offset": self.offset, "size": self.size}
        if self.rows is not None:
            layer["full_shape"] = self.full_shape
            layer["rows"] = self.rows.tolist()
        return layer


class Layout:
    """Layers in the order given: pairs of name and shape. `keep`: share of the rows (first axis) to keep in layers of 1,024 elements or
    more. Layers with as many rows keep the same rows; the choice depends on `seed` and the number of rows only, so all ranks agree."""

    def __init__(self, named_shapes, keep=1.0, seed=1):
        if not 0 < keep <= 1:
            raise ValueError(f"rows: expected a share > 0 and <= 1, found {keep}")
        self.entries = []
        self.gradients = 0
        self.full_gradients = 0
        for name, shape in named_shapes:
            full = int(numpy.prod(shape, dtype=numpy.int64))
            rows = None
            if keep < 1 and full >= SAMPLED_FROM and len(shape) > 0 and shape[0] > 1:
                count = max(1, round(keep * shape[0]))
                if count < shape[0]:
                    random = numpy.random.Generator(numpy.random.PCG64([seed, shape[0]]))
                    rows = numpy.sort(random.permutation(shape[0])[:count])
            entry = Entry(name, shape, rows, self.gradients)
            self.entries.append(entry)
            self.gradients += entry.size
            self.full_gradients += full
        if self.gradients == 0:
            raise ValueError("model: expected parameters that require gradients, found none")
