#!/usr/bin/env python3
"""Says what differs between two result directories: inputs, experiment, runs, numbers. Exit status: 0 compared (same or not: the last line
says which), 1 a file could not be written, 2 wrong input or usage."""
import csv
import io
import json
import math
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import plot  # noqa: E402
from analysis import results as result_files  # noqa: E402

MATCH = ("trace", "sparsifier", "parameters", "density", "workers", "captured_workers", "expansion_requested", "platform", "profile", "all_gather", "all_reduce", "broadcast", "seed")
# What tells runs apart besides, where it varies within both directories.
MORE = (*result_files.OPTIONAL_KEYS, "iterations", "warmup_iterations")
# What a run was given or made of besides, which may differ between runs that are matched.
ASIDE = ("iterations", "warmup_iterations", "expansion", "validated", "network", "counts_origin", "kernel_times_origin", "compute_times_origin")
MACHINE = ("host", "system", "processor", "cores")
SHOWN = 6  # of a list of runs


class Missing:
    """What a document lacks."""

    def __str__(self):
        return "nothing"


MISSING = Missing()


def flat(value, place=""):
    """JSON as {pointer: leaf}; lists are leaves, for their order matters."""
    if isinstance(value, dict) and value:
        return {key: leaf for name, item in value.items() for key, leaf in flat(item, f"{place}/{name}").items()}
    return {place: value}


def differences(a, b):
    """[(pointer, value in a, value in b)] of two JSON documents, in the order of a, then of b."""
    left, right = flat(a), flat(b)
    keys = list(dict.fromkeys([*left, *right]))
    found = [(key, left.get(key, MISSING), right.get(key, MISSING)) for key in keys]
    return [entry for entry in found if type(entry[1]) is not type(entry[2]) or entry[1] != entry[2]]


def text(value):
    return str(value) if isinstance(value, (str, Missing)) else json.dumps(value, ensure_ascii=False)


def document(directory, name):
    path = os.path.join(directory, name)
    return result_files.read_object(path) if os.path.exists(path) else {}


def renamed(a, b):
    """Key columns with one value in either table and not the same: {column: (value in a, value in b)}. Runs are matched without them."""
    found = {}
    for key in MATCH:
        left, right = ({getattr(row, key) for row in one.rows if row.sparsifier not in result_files.DENSE or key not in ("density", "seed", "captured_workers", "expansion_requested")}
                       for one in (a, b))
        if len(left) == len(right) == 1 and left != right:
            found[key] = (left.pop(), right.pop())
    return found


def varied(a, b):
    """Of MORE, what the sparsifiers' rows of both have several values of."""
    return [key for key in MORE if all(len({getattr(row, key) for row in one.rows if row.sparsifier not in result_files.DENSE}) > 1 for one in (a, b))]


def keyed(results, without, more):
    found = {}
    for row in results.rows:
        key = (row.metric_group, *(getattr(row, key) for key in MATCH if key not in without and not (key == "density" and row.sparsifier in result_files.DENSE)),
               *(getattr(row, key) for key in more))
        if key in found and not result_files._same_values(found[key], row):
            raise result_files.InputError(results.table_file, f"line {row.line}", "one row with these keys", f"another with other numbers in line {found[key].line}")
        found[key] = row
    return found


def describe(row, without=()):
    parts = [row.sparsifier + ("" if row.parameters == "{}" else " " + row.parameters), f"n = {row.workers}"]
    parts += [f"density {row.density:g}"] * (row.sparsifier not in result_files.DENSE) + [row.platform] + ([f"seed {row.seed}"] if row.seed != 1 else [])
    return ", ".join(parts)


def compare(first, second, tolerance):
    """The comparison as a JSON document; `numbers` has every number that differs."""
    a, b = result_files.load(first), result_files.load(second)
    environments = [document(one, "environment.json") for one in (first, second)]
    without = renamed(a, b)
    more = varied(a, b)
    left, right = keyed(a, without, more), keyed(b, without, more)
    both = [key for key in left if key in right]
    inputs = differences(*(env.get("inputs_sha256", {}) for env in environments))
    programs = [d for d in differences(*({k: v for k, v in env.items() if k not in ("inputs_sha256", "platforms")} for env in environments))]
    numbers, aside, pairs = [], {}, {}
    # A column of a later version says nothing about results of an earlier one.
    absent = [column for column in sum(result_files.OPTIONAL.values(), ())
              if any(all(math.isnan(table[key].values.get(column, math.nan)) for key in both) for table in (left, right))]
    for key in both:
        x, y = left[key], right[key]
        for column in ASIDE:
            if getattr(x, column) != getattr(y, column):
                aside.setdefault(column, {}).setdefault((str(getattr(x, column)), str(getattr(y, column))), []).append(key)
        for column in {**x.values, **y.values}:
            u, v = x.values.get(column, math.nan), y.values.get(column, math.nan)
            if column in absent or (math.isnan(u) and math.isnan(v)):
                continue
            pairs[column] = pairs.get(column, 0) + 1
            if u != v and not (math.isfinite(u) and math.isfinite(v) and abs(u - v) <= tolerance * max(abs(u), abs(v))):
                numbers.append({"metric": column, "a": u, "b": v, "row": x})
    breaks = []
    points = [{(e.platform if "platform" not in without else "", e.profile if "profile" not in without else "", e.sparsifier, e.parameters, e.density if "density" not in without else 0, e.baseline,
                e.all_gather if "all_gather" not in without else "", e.seed if "seed" not in without else 0, tuple(sorted((k, str(v)) for k, v in e.more.items() if k not in without and (k not in MORE or k in more)))): e
               for e in one.break_even} for one in (a, b)]
    for key, e in points[0].items():
        other = points[1].get(key)
        if other is not None and (len(e.points) != len(other.points) or any(abs(x - y) > tolerance * max(x, y) for x, y in zip(e.points, other.points))):
            breaks.append({"platform": e.platform, "sparsifier": e.sparsifier, "parameters": e.parameters, "density": e.density, "baseline": e.baseline, "seed": e.seed,
                           "a": list(e.points), "b": list(other.points)})
    metrics = []
    for column in pairs:
        mine = [n for n in numbers if n["metric"] == column]
        if mine:
            ratios = [(n["b"] / n["a"], n["row"]) for n in mine if math.isfinite(n["a"]) and math.isfinite(n["b"]) and n["a"] != 0]
            low, high = (min(ratios, key=lambda r: r[0]), max(ratios, key=lambda r: r[0])) if ratios else (None, None)
            metrics.append({"metric": column, "differ": len(mine), "compared": pairs[column],
                            "median_ratio": statistics.median(r for r, _ in ratios) if ratios else None,
                            "lowest_ratio": low and low[0], "lowest_at": low and describe(low[1]), "highest_ratio": high and high[0], "highest_at": high and describe(high[1])})
    # The series of a run has several groups; a run is said to be in one directory only once.
    only = [list(dict.fromkeys(describe(table[key]) for key in table if key not in other)) for table, other in ((left, right), (right, left))]
    experiments = [{k: v for k, v in document(one, "experiment.json").items()} for one in (first, second)]
    return {
        "schema_version": 1, "a": first, "b": second, "tolerance": tolerance,
        "inputs": [{"input": place[1:], "a": text(x), "b": text(y)} for place, x, y in inputs],
        "program": [{"what": place, "a": text(x), "b": text(y)} for place, x, y in programs if place.split("/")[1] not in MACHINE],
        "machine": [{"what": place, "a": text(x), "b": text(y)} for place, x, y in programs if place.split("/")[1] in MACHINE],
        "experiment": [{"key": place, "a": text(x), "b": text(y)} for place, x, y in differences(*experiments)],
        "matched_without": {key: {"a": str(x), "b": str(y)} for key, (x, y) in without.items()},
        "matched_runs": len({left[key].run_id for key in both}), "only_in_a": only[0], "only_in_b": only[1],
        "aside": [{"column": column, "a": x, "b": y, "runs": len({left[key].run_id for key in keys})} for column, found in aside.items() for (x, y), keys in found.items()],
        "metrics": metrics, "break_even": breaks,
        "numbers": [{**{key: getattr(n["row"], key) for key in MATCH}, "metric": n["metric"], "a": n["a"], "b": n["b"], "difference": n["b"] - n["a"],
                     "ratio": n["b"] / n["a"] if n["a"] else math.nan} for n in numbers]}


def same(found):
    return not any(found[key] for key in ("inputs", "experiment", "matched_without", "only_in_a", "only_in_b", "aside", "metrics", "break_even"))


def columns(rows):
    """Rows of texts as aligned lines."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def readable(found):
    lines = [f"A: {found['a']}", f"B: {found['b']}"]

    def section(title, rows, head):
        if rows:
            lines.append(title + ":")
            lines.extend(columns([head] + rows) if head else columns(rows))

    section("Inputs that differ", [[e["input"], e["a"][:16], e["b"][:16]] for e in found["inputs"]], ["input", "A", "B"])
    section("Program", [[e["what"], e["a"][:40], e["b"][:40]] for e in found["program"]], ["", "A", "B"])
    section("Machine", [[e["what"], e["a"][:40], e["b"][:40]] for e in found["machine"]], ["", "A", "B"])
    section("Experiment", [[e["key"], e["a"][:60], e["b"][:60]] for e in found["experiment"]], ["key", "A", "B"])
    section("Runs are matched although these differ", [[key, e["a"], e["b"]] for key, e in found["matched_without"].items()], ["key", "A", "B"])
    lines.append(f"Runs in both: {found['matched_runs']}; only in A: {len(found['only_in_a'])}; only in B: {len(found['only_in_b'])}")
    for name in ("a", "b"):
        only = found["only_in_" + name]
        lines += [f"  only in {name.upper()}: {one}" for one in only[:SHOWN]] + ([f"  and {len(only) - SHOWN} more"] if len(only) > SHOWN else [])
    section("What runs in both were made of", [[e["column"], e["a"], e["b"], str(e["runs"])] for e in found["aside"]], ["column", "A", "B", "runs"])

    def ratio(value):
        return "-" if value is None else f"{value:.6g}"

    section("Numbers that differ (ratio B / A)", [[m["metric"], f"{m['differ']} of {m['compared']}", ratio(m["median_ratio"]),
                                                    ratio(m["lowest_ratio"]) + (f" ({m['lowest_at']})" if m["lowest_at"] else ""),
                                                    ratio(m["highest_ratio"]) + (f" ({m['highest_at']})" if m["highest_at"] else "")] for m in found["metrics"]],
            ["metric", "differ", "median", "lowest", "highest"])
    section("Break-even points", [[f"{e['sparsifier']}{'' if e['parameters'] == '{}' else ' ' + e['parameters']}, density {e['density']:g}, {e['platform']}, against {e['baseline']}",
                                    ", ".join(f"{p:.4g}" for p in e["a"]) or "none", ", ".join(f"{p:.4g}" for p in e["b"]) or "none"] for e in found["break_even"]], ["", "A", "B"])
    if found["matched_runs"] == 0:
        lines.append("No run is in both: nothing was compared.")
    elif not found["metrics"]:
        lines.append("All numbers of the runs in both are the same" + (f" (relative tolerance {found['tolerance']:g})." if found["tolerance"] else "."))
    lines.append("Same results." if same(found) else "The directories differ.")
    return "\n".join(lines) + "\n"


def table(found):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = MATCH + ("metric", "a", "b", "difference", "ratio")
    writer.writerow(names)
    writer.writerows([plot.cell(row[name]) for name in names] for row in found["numbers"])
    return out.getvalue()


def finite(value):
    """JSON has no NaN: null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments=None):
    parser = plot.Arguments(prog="compare.py", description="Says what differs between two result directories.")
    parser.add_argument("first", metavar="A")
    parser.add_argument("second", metavar="B")
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative difference up to which numbers count as the same (default 0)")
    parser.add_argument("--csv", help="every number that differs, to this file (-: stdout, instead of the text)")
    parser.add_argument("--json", help="the whole comparison, to this file (-: stdout, instead of the text)")
    options = parser.parse_args(arguments)
    if not 0 <= options.tolerance < math.inf:
        parser.error(f"expected a tolerance of at least 0, found {options.tolerance}")
    if options.csv == "-" and options.json == "-":
        parser.error("expected at most one of --csv and --json to go to standard output, found both")
    try:
        found = compare(options.first, options.second, options.tolerance)
        outputs = ((options.csv, table), (options.json, lambda f: json.dumps(dict(finite(f), same=same(f)), indent=1, ensure_ascii=False) + "\n"))
        for path, make in outputs:
            if path == "-":
                sys.stdout.write(make(found))
            elif path:
                plot.replace(path, lambda temporary: plot.write_bytes(temporary, make(found).encode()))
        if "-" not in (options.csv, options.json):
            sys.stdout.write(readable(found))
    except result_files.InputError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
