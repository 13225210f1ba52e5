"""Reads a result directory strictly (docs/results.md) and cuts it into what one panel of a figure shows.

Wrong input raises InputError, whose text is one line: FILE: PLACE: expected X, found Y.
"""
import csv
import json
import math
import os
from dataclasses import dataclass, field

DENSE = ("dense", "dense_fp16")

TEXT_KEYS = ("run_id", "metric_group", "trace", "sparsifier", "parameters", "expansion", "expansion_requested", "platform", "profile",
             "network", "all_gather", "all_reduce", "broadcast", "counts_origin", "kernel_times_origin", "compute_times_origin")
INTEGER_KEYS = ("workers", "captured_workers", "seed", "iterations", "warmup_iterations")
KEYS = TEXT_KEYS + INTEGER_KEYS + ("density", "validated")
PHASES = ("forward_backward_time_s", "selection_time_s", "index_exchange_time_s", "value_exchange_time_s", "other_time_s")
GROUPS = {
    "selection": ("target_k", "selected_sum_mean", "selected_max_mean", "union_mean", "actual_density_mean",
                  "actual_density_p05", "actual_density_p95", "build_up_mean", "build_up_p05", "build_up_p95",
                  "build_up_calibrated_mean", "padding_mean", "padding_p05", "padding_p95", "threshold_mean",
                  "residual_norm_mean"),
    "time": ("iteration_time_s_mean", "iteration_time_s_p05", "iteration_time_s_p95") + PHASES + ("speed_up",),
    "traffic": ("bytes_sent_per_worker_mean", "bytes_sent_per_worker_max", "messages_mean"),
}
# Columns that directories of earlier versions lack; their cells are empty then.
OPTIONAL = {"selection": ("energy_exchanged_mean", "build_up_consensus_mean", "build_up_estimate_low", "build_up_estimate_high", "build_up_seed_low", "build_up_seed_high"),
            "time": ("iteration_time_s_seed_low", "iteration_time_s_seed_high",
                     "iteration_time_s_kernel_low", "iteration_time_s_kernel_high", "selection_time_s_kernel_low", "selection_time_s_kernel_high",
                     "exposed_exchange_time_s", "overlapped_time_s", "worker_spread_s"),
            "traffic": ("bytes_received_per_worker_max", "receive_buffer_bytes_max", "device_link_bytes_mean", "nic_bytes_mean", "network_link_bytes_mean", "global_link_bytes_mean")}
# Key columns that directories of earlier versions lack, and what stands for them; they tell slices apart only where rows would be the same otherwise.
OPTIONAL_KEYS = {**dict.fromkeys(("error_feedback", "lr_in_accumulator", "memory", "reduce_scatter", "reduce", "all_to_all", "gossip", "extrapolate_profile", "forward_time_s", "backward_time_s",
                                  "network_requested"), ""), "index_encoding": "as_sent", "timeline": "sequential", "timeline_options": "{}", "disturbance": "{}"}
SOFT_KEYS = tuple(OPTIONAL_KEYS) + ("compute_times_origin", "warmup_iterations", "iterations", "network")
CHOICES = {"metric_group": tuple(GROUPS), "expansion": ("captured", "boot", "hybrid", "shift"), "counts_origin": ("captured", "projected")}
MAY_BE_NEGATIVE = ("threshold_mean",)
# Columns that may be empty in a selection row: a run need not have a platform.
MAY_BE_EMPTY = ("platform", "profile", "network", "all_gather", "all_reduce", "broadcast", "kernel_times_origin", "compute_times_origin")
# The phases are written with as many digits as doubles need, so their sum may differ by rounding only.
PHASE_SUM_TOLERANCE = 1e-6
# No gradient is so long that less than this would be a gradient.
LEAST_DENSITY = 1e-12
# Nothing that is counted, timed or divided here gets larger: beyond it a number is a mistake, and no axis could show it.
LARGEST = 1e30


class InputError(Exception):
    """Wrong input from the user; str() is the line the user sees, without the program's name."""

    def __init__(self, file, place, expected, found):
        text = ": ".join(part for part in (str(file), str(place)) if part)
        line = f"{text}: expected {expected}, found {found}"
        super().__init__("".join(c if c.isprintable() else " " for c in line))


def shorten(value, limit=60):
    """A value as it is quoted in an error, cut so that the line stays readable."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(frozen=True)
class Row:
    """One line of results.csv: key columns as attributes through `keys`, numbers of its group in `values` (NaN where empty)."""
    line: int
    keys: dict
    values: dict

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.keys[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def series(self):
        return self.sparsifier, self.parameters

    @property
    def status(self):
        """captured, projected, or unvalidated (projected beyond the range in which expansion was compared with captured workers)."""
        if self.counts_origin == "captured":
            return "captured"
        return "projected" if self.validated else "unvalidated"


@dataclass(frozen=True)
class BreakEven:
    """One entry of summary.json's break_even: `points` in workers, ascending. `more` are keys that an entry may lack."""
    platform: str
    profile: str
    sparsifier: str
    parameters: str
    density: float
    baseline: str
    all_gather: str
    seed: int
    points: tuple
    wins_at: tuple
    loses_at: tuple
    more: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    directory: str
    rows: tuple
    break_even: tuple
    warnings: tuple
    _series: dict = field(default_factory=dict, repr=False, compare=False)

    @property
    def table_file(self):
        return os.path.join(self.directory, "results.csv")

    def group(self, name):
        return [row for row in self.rows if row.metric_group == name]

    def has_series(self):
        """Whether the files of the runs are there (a table may have been passed on without them)."""
        return os.path.isdir(os.path.join(self.directory, "runs"))

    def series(self, row, name):
        """Values of a run's series, one for every recorded iteration, NaN where there is none. Errors: InputError."""
        if row.run_id not in self._series:
            self._series[row.run_id] = _read_series(os.path.join(self.directory, "runs", row.run_id + ".json"), row.iterations)
        return self._series[row.run_id].get(name) or [math.nan] * row.iterations

    def activity(self, row):
        """What a worker of a run does in its last recorded iteration (docs/results.md), None where an earlier version made the run.
        Errors: InputError."""
        path = os.path.join(self.directory, "runs", row.run_id + ".json")
        document = read_object(path)
        return _checked_activity(path, document["activity"]) if "activity" in document else None


def canonical_parameters(text):
    """Parameters as compact JSON with sorted keys; ValueError when the text is not a JSON object."""
    value = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _refuse_constant(name):
    raise ValueError(name)


def _read_text(path):
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise InputError(path, "", "a file", "none") from None
    except OSError as error:
        raise InputError(path, "", "a readable file", error.strerror or str(error)) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(path, f"byte {error.start}", "UTF-8 text", f"byte 0x{data[error.start]:02x}") from None


def _integer(text):
    if not text.isascii() or not text.lstrip("-").isdigit():
        raise ValueError(text)
    return int(text)


def _number(text):
    value = float(text)
    if abs(value) > LARGEST or not text.isascii() or "_" in text:
        raise ValueError(text)
    return value


def _parse_row(path, line, cells):
    def fail(column, expected):
        raise InputError(path, f"line {line}, column {column}", expected, shorten(cells[column]))

    keys = {}
    for column in TEXT_KEYS:
        keys[column] = cells[column]
        if column in CHOICES and cells[column] not in CHOICES[column]:
            fail(column, "one of " + ", ".join(CHOICES[column]))
    for column, default in OPTIONAL_KEYS.items():
        keys[column] = cells.get(column) or default
    group = keys["metric_group"]
    for column in TEXT_KEYS:
        if not cells[column] and not (group == "selection" and column in MAY_BE_EMPTY):
            fail(column, "a value")
    try:
        keys["parameters"] = canonical_parameters(cells["parameters"])
    except (ValueError, RecursionError):
        fail("parameters", "a JSON object")
    for column in INTEGER_KEYS:
        least = 1 if column in ("workers", "iterations") else 0
        try:
            keys[column] = _integer(cells[column])
        except ValueError:
            fail(column, "an integer")
        most = 2**64 - 1 if column == "seed" else 2**31 - 1
        if not least <= keys[column] <= most:
            fail(column, f"an integer from {least} to {most}")
    try:
        keys["density"] = _number(cells["density"])
    except ValueError:
        fail("density", "a number")
    if not LEAST_DENSITY <= keys["density"] <= 1:
        fail("density", "a number above 0 and at most 1")
    if cells["validated"] not in ("true", "false"):
        fail("validated", "true or false")
    keys["validated"] = cells["validated"] == "true"
    values = {}
    for column in GROUPS[group] + OPTIONAL[group]:
        text = cells.get(column, "")
        try:
            value = _number(text) if text else math.nan
        except ValueError:
            fail(column, "a finite number or nothing")
        if value < 0 and column not in MAY_BE_NEGATIVE:
            fail(column, "a number of at least 0")
        values[column] = value
    if group == "time":
        total, parts = values["iteration_time_s_mean"], sum(values[phase] for phase in PHASES)
        if abs(total - parts) > PHASE_SUM_TOLERANCE * abs(total):
            fail("iteration_time_s_mean", f"the sum of the five phases, {parts:.9g}")
    for column in values:
        if column.endswith("_p05"):
            low, high = values[column], values[column[:-3] + "p95"]
            if low > high:
                fail(column, f"at most its 95 % quantile, {high:.9g}")
    return Row(line, keys, values)


def _read_rows(path):
    reader = csv.reader(_read_text(path).splitlines(keepends=True), strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise InputError(path, "line 1", "a header", "nothing")
        for column in header:
            if header.count(column) > 1:
                raise InputError(path, "line 1", "every column once", f"{shorten(column)} twice")
        for column in KEYS + sum(GROUPS.values(), ()):
            if column not in header:
                raise InputError(path, "line 1", f"a column {column}", "none")
        rows = []
        for cells in reader:
            if len(cells) != len(header):
                raise InputError(path, f"line {reader.line_num}", f"{len(header)} cells", str(len(cells)))
            rows.append(_parse_row(path, reader.line_num, dict(zip(header, cells))))
    except csv.Error as error:
        raise InputError(path, f"line {reader.line_num}", "CSV", str(error)) from None
    if not rows:
        raise InputError(path, "line 2", "at least one row", "none")
    return tuple(rows)


def _member(path, pointer, value, key, kinds, expected):
    if key not in value:
        raise InputError(path, f"{pointer}/{key}", expected, "nothing")
    item = value[key]
    if not isinstance(item, kinds) or (isinstance(item, bool) and (not isinstance(kinds, tuple) or bool not in kinds)) or (isinstance(item, (int, float)) and abs(item) > LARGEST):
        raise InputError(path, f"{pointer}/{key}", expected, shorten(item))
    return item


def read_object(path):
    """A JSON file that holds an object. Errors: InputError."""
    try:
        value = json.loads(_read_text(path), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InputError(path, f"line {error.lineno}, column {error.colno}", "JSON", error.msg) from None
    except (ValueError, RecursionError) as error:
        raise InputError(path, "", "JSON", str(error)) from None
    if not isinstance(value, dict):
        raise InputError(path, "", "a JSON object", shorten(value))
    return value


def _read_series(path, iterations):
    """The series of a run by name, nulls as NaN; every one as long as the run has recorded iterations."""
    series = _member(path, "", read_object(path), "series", dict, "an object")
    for name, values in series.items():
        pointer = f"/series/{name}"
        if not isinstance(values, list) or len(values) != iterations:
            raise InputError(path, pointer, f"a list of {iterations} numbers", shorten(values))
        for index, value in enumerate(values):
            if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) > LARGEST):
                raise InputError(path, f"{pointer}/{index}", "a number or null", shorten(value))
        series[name] = [math.nan if value is None else float(value) for value in values]
    return series


def _checked_activity(path, activity):
    """Errors: InputError unless every piece lies inside the iteration and none ends before it begins."""
    if not isinstance(activity, dict):
        raise InputError(path, "/activity", "an object", shorten(activity))
    end = _member(path, "/activity", activity, "end_s", (int, float), "a number")
    for name, key, kinds in (("compute", "kind", str), ("communicate", "stream", int)):
        for index, piece in enumerate(_member(path, "/activity", activity, name, list, "a list")):
            pointer = f"/activity/{name}/{index}"
            if not isinstance(piece, dict):
                raise InputError(path, pointer, "an object", shorten(piece))
            what = _member(path, pointer, piece, key, kinds, "a text" if kinds is str else "an integer")
            if kinds is str and what not in ("forward", "backward", "selection", "other"):
                raise InputError(path, f"{pointer}/kind", "forward, backward, selection or other", shorten(what))
            times = [_member(path, pointer, piece, time, (int, float), "a number") for time in ("begin_s", "end_s")]
            if not 0 <= times[0] <= times[1] <= end * (1 + 1e-9):
                raise InputError(path, pointer, f"0 <= begin_s <= end_s <= {end:.9g}", f"{times[0]:.9g} and {times[1]:.9g}")
    return activity


def same_key(text, value):
    """Whether a cell of a key column says what a JSON value does."""
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    try:
        return text == value if isinstance(value, str) else float(text) == value
    except (TypeError, ValueError):
        return False


def _read_summary(path):
    value = read_object(path)
    if _member(path, "", value, "schema_version", int, "1") != 1:
        raise InputError(path, "/schema_version", "1", shorten(value["schema_version"]))
    entries = []
    for number, entry in enumerate(_member(path, "", value, "break_even", list, "a list")):
        pointer = f"/break_even/{number}"
        if not isinstance(entry, dict):
            raise InputError(path, pointer, "an object", shorten(entry))
        texts = {key: _member(path, pointer, entry, key, str, "a text")
                 for key in ("platform", "profile", "sparsifier", "parameters", "baseline", "all_gather")}
        try:
            texts["parameters"] = canonical_parameters(texts["parameters"])
        except (ValueError, RecursionError):
            raise InputError(path, pointer + "/parameters", "a text that holds a JSON object", shorten(texts["parameters"])) from None
        more = {key: _member(path, pointer, entry, key, kind, expected)
                for key, kind, expected in (("trace", str, "a text"), ("warmup_iterations", int, "an integer"), ("iterations", int, "an integer"), ("compute_times_origin", str, "a text"),
                                            *((key, (str, bool, int, float, dict), "a value") for key in OPTIONAL_KEYS), ("all_reduce", str, "a text"), ("broadcast", str, "a text"),
                                            ("expansion_requested", str, "a text"),
                                            ("captured_workers", int, "an integer")) if key in entry}
        density = float(_member(path, pointer, entry, "density", (int, float), "a number"))
        seed = _member(path, pointer, entry, "seed", int, "an integer")
        points = []
        for index, point in enumerate(_member(path, pointer, entry, "points", list, "a list")):
            place = f"{pointer}/points/{index}"
            if not isinstance(point, dict):
                raise InputError(path, place, "an object", shorten(point))
            workers = float(_member(path, place, point, "workers", (int, float), "a number of at least 1"))
            if not 1 <= workers < math.inf:
                raise InputError(path, place + "/workers", "a number of at least 1", shorten(workers))
            points.append(workers)
        lists = {}
        for key in ("wins_at", "loses_at"):
            lists[key] = _member(path, pointer, entry, key, list, "a list of integers")
            for index, item in enumerate(lists[key]):
                if not isinstance(item, int) or isinstance(item, bool) or item < 1:
                    raise InputError(path, f"{pointer}/{key}/{index}", "an integer of at least 1", shorten(item))
        entries.append(BreakEven(density=density, seed=seed, points=tuple(sorted(points)), wins_at=tuple(sorted(lists["wins_at"])),
                                 loses_at=tuple(sorted(lists["loses_at"])), more=more, **texts))
    warnings = _member(path, "", value, "warnings", list, "a list of texts")
    for index, item in enumerate(warnings):
        if not isinstance(item, str):
            raise InputError(path, f"/warnings/{index}", "a text", shorten(item))
    return tuple(entries), tuple(warnings)


def load(directory):
    """Reads DIR/results.csv and DIR/summary.json. Errors: InputError."""
    if not os.path.isdir(directory):
        raise InputError(directory, "", "a result directory", "a file" if os.path.exists(directory) else "nothing")
    rows = _read_rows(os.path.join(directory, "results.csv"))
    break_even, warnings = _read_summary(os.path.join(directory, "summary.json"))
    return Results(directory, rows, break_even, warnings)


@dataclass(frozen=True)
class Point:
    """What one series shows at one n: rows that differ only in their seed."""
    rows: tuple

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rows[0], name)

    def mean(self, column):
        """Mean over the seeds; NaN when a seed has no number."""
        return sum(row.values[column] for row in self.rows) / len(self.rows)

    def spread(self, column, low, high):
        """Least and largest over the seeds with kernel times at their quartiles, the columns `low` and `high`; where those are not known with `column`. NaN when a seed has no number,
        or when there is nothing to spread: one seed, no quartiles."""
        values = [[row.values[name] if math.isfinite(row.values[name]) else row.values[column] for name in (low, column, high)] for row in self.rows]
        flat = sum(values, [])
        known = len(self.rows) > 1 or math.isfinite(self.rows[0].values[low])
        return (min(flat), max(flat)) if known and not any(map(math.isnan, flat)) else (math.nan, math.nan)

    def low(self, column):
        """Lowest over the seeds; NaN when a seed has no number."""
        values = [row.values[column] for row in self.rows]
        return math.nan if any(map(math.isnan, values)) else min(values)

    def high(self, column):
        """Highest over the seeds; NaN when a seed has no number."""
        values = [row.values[column] for row in self.rows]
        return math.nan if any(map(math.isnan, values)) else max(values)


@dataclass(frozen=True)
class Slice:
    """Everything that shares trace, density, expansion and (for times) platform, profile, all-gather: one panel's data.

    `facets` are the fixed values by name, `curves` the points of every series (sparsifier, parameters), ascending in workers;
    the dense baselines are among them.
    """
    facets: dict
    curves: dict = field(default_factory=dict)

    def rows(self, dense=True):
        return [row for series, points in self.curves.items() if dense or series[0] not in DENSE for point in points for row in point.rows]

    def workers(self, dense=True):
        return sorted({row.workers for row in self.rows(dense)})

    def sparse(self):
        return {series: points for series, points in self.curves.items() if series[0] not in DENSE}

    def validated_up_to(self):
        """Largest n that is captured or validated, None when nothing lies beyond it, 0 when everything does."""
        rows = self.rows(dense=False) or self.rows()
        beyond = [row.workers for row in rows if row.status == "unvalidated"]
        inside = [row.workers for row in rows if row.status != "unvalidated"]
        largest = max(inside, default=0)
        return largest if beyond and max(beyond) > largest else None


def _same_values(a, b):
    return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a.values.values(), b.values.values()))


def _collapse(rows):
    """Rows by (series, workers, seed), equal ones once; the first pair that cannot be told apart, or None."""
    chosen = {}
    for row in rows:
        key = (row.series, row.workers, row.seed)
        if key not in chosen:
            chosen[key] = row
        elif not _same_values(chosen[key], row):
            return chosen, (chosen[key], row)
    return chosen, None


def slices(results, group, hard):
    """Cuts the rows of a metric group into slices, in the order of the file.

    `hard` names the key columns that always tell slices apart; SOFT_KEYS do so only where rows would
    be the same otherwise (network may differ from n to n within one curve). Captured rows (n <= W) belong to every expansion of their trace, the dense
    baselines to every density. Rows that differ in no key but in their numbers: InputError.
    """
    everything = results.group(group)
    sparse = [row for row in everything if row.sparsifier not in DENSE] or everything
    combinations = list(dict.fromkeys(tuple(getattr(row, key) for key in hard) for row in sparse))
    found = []
    for combination in combinations:
        fixed = dict(zip(hard, combination))
        here = [row for row in sparse if all(getattr(row, key) == value for key, value in fixed.items())]
        expansions = list(dict.fromkeys((row.captured_workers, row.expansion_requested) for row in here if row.counts_origin == "projected"))
        if not expansions:
            expansions = [(max(row.captured_workers for row in here), "auto")]
        for captured_workers, expansion in expansions:
            rows = [row for row in here if (row.captured_workers, row.expansion_requested) == (captured_workers, expansion)
                    or (row.counts_origin == "captured" and row.workers <= captured_workers)]
            # Of captured rows that say the same, the one of this very number of captured workers is taken.
            rows.sort(key=lambda row: (row.captured_workers, row.expansion_requested) != (captured_workers, expansion))
            facets = dict(fixed, captured_workers=captured_workers, expansion_requested=expansion)
            _cut(results, facets, rows, _baseline_rows(everything, facets), SOFT_KEYS, found)
    return found


def _baseline_rows(everything, facets):
    rows = [row for row in everything if row.sparsifier in DENSE
            and all(getattr(row, key) == facets[key] for key in ("trace", "platform", "profile") if key in facets)]
    # A baseline need not have been run for every all-gather and expansion, on which it does not depend: the nearest are taken.
    rows.sort(key=lambda row: tuple(getattr(row, key) != facets[key] for key in ("all_gather", "all_reduce", "broadcast", "captured_workers", "expansion_requested")
                                    if key in facets))
    nearest = {}
    for row in rows:
        nearest.setdefault((row.series, row.workers, row.seed) + tuple(getattr(row, key) for key in SOFT_KEYS), row)
    return list(nearest.values())


def _strangeness(rows):
    """How many soft keys of a row no row with as many workers has (no row at all, where there is none of them)."""
    def values(rows):
        return {key: {getattr(row, key) for row in rows} for key in SOFT_KEYS}

    known, everywhere = {}, values(rows)
    for n in {row.workers for row in rows}:
        known[n] = values([row for row in rows if row.workers == n])
    return lambda row: sum(getattr(row, key) not in known.get(row.workers, everywhere)[key] for key in SOFT_KEYS)


def _cut(results, facets, rows, baselines, soft, found):
    if rows and rows[0].sparsifier in DENSE:
        baselines = []
    chosen, conflict = _collapse(rows)
    if conflict:
        a, b = conflict
        for key in soft:
            if getattr(a, key) != getattr(b, key):
                for value in list(dict.fromkeys(getattr(row, key) for row in rows)):
                    _cut(results, dict(facets, **{key: value}), [row for row in rows if getattr(row, key) == value],
                         [row for row in baselines if getattr(row, key) == value] or baselines, tuple(s for s in soft if s != key), found)
                return
        raise InputError(results.table_file, f"line {b.line}", f"one {b.metric_group} row for {b.sparsifier} {b.parameters}, "
                         f"n = {b.workers}, seed {b.seed} with these keys", f"another with other numbers in line {a.line}")
    # Where keys go together, as those of a named axis do, the baseline is that of the same compute times, timeline and so on.
    for row in sorted(baselines, key=_strangeness(rows)):
        chosen.setdefault((row.series, row.workers, row.seed), row)
    seeds = {row.seed for row in rows}
    points = {}
    for row in chosen.values():
        if row.seed in seeds or row.sparsifier in DENSE:
            points.setdefault(row.series, {}).setdefault(row.workers, []).append(row)
    curves = {series: tuple(Point(tuple(sorted(by_n[n], key=lambda row: row.seed))) for n in sorted(by_n)) for series, by_n in points.items()}
    found.append(Slice(facets, curves))


def varying(found):
    """Names of the facets that differ between slices, in the order of the facets."""
    names = list(dict.fromkeys(name for one in found for name in one.facets))
    return [name for name in names if len({one.facets.get(name) for one in found}) > 1]
