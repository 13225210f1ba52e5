#!/usr/bin/env python3
"""Compares results with the numbers that the experiment's sources give (the list `claims` of the experiment, docs/experiments.md). Writes
DIR/tables/claims.csv. Exit status: 0 compared, 1 with --strict when a claim differs that is not known to, or a file could not be written,
2 wrong input or usage."""
import argparse
import csv
import io
import json
import math
import os
import sys
import textwrap
from dataclasses import dataclass

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import plot  # noqa: E402
from analysis import results as result_files  # noqa: E402

REDUCE = {"mean": lambda values: sum(values) / len(values), "min": min, "max": max}
COLUMNS = ("claim", "source", "expected", "value", "outcome", "differs_because", "runs", "failures")
# What a failed replay or run says of itself under the names of results.csv.
KNOWN_OF_FAILURES = ("sparsifier", "density", "workers", "captured_workers", "seed", "warmup_iterations", "iterations", "error_feedback", "lr_in_accumulator", "value_encoding",
                     "index_encoding")


@dataclass(frozen=True)
class Outcome:
    """`expected` in words, `low` and `high` its bounds (infinite where open), `point` what the source says (NaN: a bound only); `value` is ours,
    NaN when the runs are not there. `outcome`: holds, differs, not run. `failures`: how many replays or runs have failed that may belong to it; they are not in `value`."""
    claim: str
    source: str
    expected: str
    point: float
    low: float
    high: float
    value: float
    outcome: str
    differs_because: str
    runs: tuple
    failures: int = 0

    @property
    def left_out(self):
        """What failed and is therefore missing here, in words; empty when nothing is."""
        return f"{self.failures} that failed and may belong to it {'is' if self.failures == 1 else 'are'} left out (sparscale status)" if self.failures else ""

    @property
    def surprising(self):
        """Neither as the source says nor as the experiment says it would differ."""
        return self.outcome == "differs" and not self.differs_because


def _cells(results):
    """The texts of every line of results.csv, by line: all key columns, also those that the figures do not look at."""
    with open(results.table_file, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        return {reader.line_num: row for row in reader}


def _says(text, wanted, some=False):
    """Whether a cell says what a JSON value does; `some`: of an object only what the value names."""
    if isinstance(wanted, bool):
        return text == ("true" if wanted else "false")
    try:
        if isinstance(wanted, dict):
            found = json.loads(text)
            return {key: found[key] for key in wanted if key in found} == wanted if some else found == wanted
        return text == wanted if isinstance(wanted, str) else float(text) == wanted
    except ValueError:
        return False


def _matches(row, cells, where, path, pointer):
    numbers = sum(result_files.GROUPS.values(), ()) + sum(result_files.OPTIONAL.values(), ())
    for key, wanted in where.items():
        if key not in cells[row.line] or key in numbers + ("metric_group", "run_id"):
            raise result_files.InputError(path, f"{pointer}/where/{key}", "a key column of results.csv", "none")
        choices = wanted if isinstance(wanted, list) else [wanted]
        text = row.parameters if key == "parameters" else cells[row.line][key]
        if not any(_says(text, one, key == "labels") for one in choices):
            return False
    return True


def _term(results, cells, term, path, pointer):
    """(value, run ids) of one side of a claim; NaN when no run matches."""
    if isinstance(term, (int, float)):
        return float(term), ()
    column, series = term.get("column"), term.get("series")
    group = "time" if series else next((name for name in result_files.GROUPS if column in result_files.GROUPS[name] + result_files.OPTIONAL[name]), None)
    if group is None:
        raise result_files.InputError(path, f"{pointer}/column", "a column of results.csv", result_files.shorten(column))
    rows = [row for row in results.group(group) if _matches(row, cells, term.get("where", {}), path, pointer)]
    if not rows:
        return math.nan, ()
    if len(rows) > 1 and "reduce" not in term:
        raise result_files.InputError(path, f"{pointer}/where", 'what only one run has, or "reduce"', f"{len(rows)} runs")
    values = []
    for row in rows:
        if not series:
            values.append(row.values[column])
            continue
        first, last = term.get("from", 0), term.get("to", row.iterations)
        if not first < last <= row.iterations:
            raise result_files.InputError(path, f"{pointer}/to", f"from < to <= the {row.iterations} recorded iterations", f"{first} and {last}")
        here = results.series(row, series)[first:last]
        values.append(sum(here) / len(here))
    return REDUCE[term.get("reduce", "mean")](values), tuple(row.run_id for row in rows)


def _failures(results):
    """What failed and has not been tried again: the identities of replays, self-checks and runs."""
    folder = os.path.join(results.directory, "failed")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json")) if os.path.isdir(folder) else []
    documents = (result_files.read_object(os.path.join(folder, name)) for name in names)
    return [identity for identity in (document.get("identity") for document in documents) if isinstance(identity, dict)]


def _may_belong(identity, where):
    known = {key: identity[key] for key in KNOWN_OF_FAILURES if key in identity}
    if "network" in identity:
        known["network_requested"] = identity["network"]
    for key, wanted in where.items():
        choices = wanted if isinstance(wanted, list) else [wanted]
        if key in known and known[key] not in choices:
            return False
    return True


def _number(value):
    return f"{value:.4g}"


def evaluate(results):
    """The outcomes of a result directory's claims, in their order; none when its experiment states none. Errors: InputError."""
    path = os.path.join(results.directory, "experiment.json")
    if not os.path.exists(path):
        return []
    outcomes = []
    cells, failures = _cells(results), _failures(results)
    for index, claim in enumerate(result_files.read_object(path).get("claims", [])):
        pointer = f"/claims/{index}"
        value, runs = _term(results, cells, claim["value"], path, pointer + "/value")
        if "over" in claim:
            other, others = _term(results, cells, claim["over"], path, pointer + "/over")
            value, runs = (value / other if other else math.nan), runs + tuple(run for run in others if run not in runs)
        point = float(claim.get("expected", math.nan))
        within = claim.get("within", 0.0)
        low, high = (point - within, point + within) if "expected" in claim else (claim.get("at_least", -math.inf), claim.get("at_most", math.inf))
        words = (f"{_number(point)} ± {_number(within)}" if "expected" in claim
                 else " and ".join([f"≥ {_number(low)}"] * ("at_least" in claim) + [f"≤ {_number(high)}"] * ("at_most" in claim)))
        # Bounds are given with few digits, so a value that is one of them up to rounding is inside.
        slack = 1e-12 * max(abs(value), 1e-300)
        outcome = "not run" if math.isnan(value) else "holds" if low - slack <= value <= high + slack else "differs"
        outcomes.append(Outcome(claim["claim"], claim["source"], words, point, low, high, value, outcome, claim.get("differs_because", ""), runs,
                                sum(any(_may_belong(one, term.get("where", {})) for term in (claim["value"], claim.get("over")) if isinstance(term, dict)) for one in failures)))
    return outcomes


def table(outcomes):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in outcomes:
        writer.writerow([one.claim, one.source, one.expected, plot.cell(one.value), one.outcome, one.differs_because, " ".join(one.runs), one.failures or ""])
    return out.getvalue()


def lines(outcomes):
    """What a person reads: a line for each claim, why it differs below it."""
    shown = []
    for one in outcomes:
        value = "-" if math.isnan(one.value) else _number(one.value)
        shown.append(f"{one.outcome:8s} {value:>10s}  claimed {one.expected}: {one.claim} [{one.source}]")
        if one.outcome == "differs" and one.differs_because:
            shown += textwrap.wrap(one.differs_because, 110, initial_indent=" " * 21, subsequent_indent=" " * 21)
        if one.left_out:
            shown.append(" " * 21 + one.left_out)
    held = sum(one.outcome == "holds" for one in outcomes)
    known = sum(one.outcome == "differs" and bool(one.differs_because) for one in outcomes)
    parts = [f"{held} of {len(outcomes)} hold"] + [f"{known} differ for a stated reason"] * (known > 0)
    surprising = sum(one.surprising for one in outcomes)
    missing = sum(one.outcome == "not run" for one in outcomes)
    parts += [f"{surprising} differ"] * (surprising > 0) + [f"{missing} not run"] * (missing > 0)
    return shown + ["Claims: " + ", ".join(parts) + "."]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="sparscale claims", description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="say nothing where there are no claims")
    options = parser.parse_args(arguments)
    try:
        results = result_files.load(options.directory)
        outcomes = evaluate(results)
        if not outcomes:
            if not options.quiet:
                raise result_files.InputError(os.path.join(options.directory, "experiment.json"), "/claims", "a list of claims", "none")
            return 0
        folder = os.path.join(options.directory, "tables")
        os.makedirs(folder, exist_ok=True)
        plot.replace(os.path.join(folder, "claims.csv"), lambda name: plot.write_bytes(name, table(outcomes).encode("utf-8")))
        print("\n".join(lines(outcomes)))
    except result_files.InputError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 1
    return 1 if options.strict and any(one.surprising for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
