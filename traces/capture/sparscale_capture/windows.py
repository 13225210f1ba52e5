"""Which iterations are captured: a list of (first iteration, number of iterations)."""


def early_middle_late(total, length):
    """Three windows of `length` iterations at the start, in the middle and at the end of `total` iterations."""
    if length < 1 or total < 3 * length:
        raise ValueError(f"windows: expected three windows of {length} >= 1 iterations within {total}")
    return [(0, length), ((total - length) // 2, length), (total - length, length)]


def every(period, length, total, first=0):
    """A window of `length` iterations at `first` and every `period` iterations after it, up to `total`."""
    if length < 1 or period < length:
        raise ValueError(f"windows: expected 1 <= length <= period, found length {length}, period {period}")
    return [(start, length) for start in range(first, total - length + 1, period)]


def checked(windows):
    """The windows in order; they must be non-empty and must not overlap."""
    windows = sorted((int(start), int(length)) for start, length in windows)
    if not windows:
        raise ValueError("windows: expected at least one (first iteration, number of iterations)")
    end = 0
    for start, length in windows:
        if start < end or length < 1:
            raise ValueError(f"windows: expected windows that do not overlap, of at least one iteration, found {windows}")
        end = start + length
    return windows
