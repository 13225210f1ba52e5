#!/usr/bin/env python3
"""Answers questions from a result directory: at which n, NIC bandwidth or density one exchange becomes faster than another (crossover), which one is the fastest and
why (best), which bandwidth an efficiency needs (bandwidth). Exit status: 0 answered, 1 it could not be timed, 2 wrong input or usage."""
import argparse
import json
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import bandwidth, families, plot  # noqa: E402
from analysis import results as result_files  # noqa: E402

KEYS = ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")
WORDS = {"captured": "captured counts", "projected": "projected counts", "unvalidated": "counts projected beyond the validated range"}
RANK = tuple(WORDS)
# What is counted as a reason: a phase's share of the iteration, padding and build-up beyond these.
SHARE, PADDING, BUILD_UP = 0.05, 1.1, 1.1


def name(series):
    return series[0] + ("" if series[1] == "{}" else " " + series[1])


def place(one, found, without=()):
    """What tells a slice apart from the others, but for the facets `without`."""
    keys = ["platform", "density"] + [key for key in result_files.varying(found) if key not in ("platform", "density")]
    return ", ".join(f"{key.replace('_', ' ')} {one.facets[key]:g}" if key == "density" else str(one.facets[key]) if key == "platform" else f"{key.replace('_', ' ')} {one.facets[key]}"
                     for key in keys if key not in without and one.facets.get(key) is not None)


def chosen(results, platform):
    found = result_files.slices(results, "time", KEYS)
    platforms = list(dict.fromkeys(one.facets["platform"] for one in found))
    if platform and platform not in platforms:
        raise result_files.InputError(results.table_file, "", f"a platform out of {', '.join(platforms)}", platform)
    return [one for one in found if not platform or one.facets["platform"] == platform]


def need(results, found, sparsifier):
    names = list(dict.fromkeys(series[0] for one in found for series in one.curves))
    if sparsifier and sparsifier not in names:
        raise result_files.InputError(results.table_file, "", f"a sparsifier out of {', '.join(names)}", sparsifier)


def crossings(mine, theirs):
    """Where the iteration time of `mine` crosses that of `theirs` (both {place on an axis: time}): list of (place, whether mine is the faster one above, last run
    below, first run above), interpolated in both logarithms; and where mine is faster, and is not."""
    common = [n for n in sorted(mine) if n in theirs and mine[n] > 0 and theirs[n] > 0]
    gaps = [(n, math.log(mine[n] / theirs[n])) for n in common]
    points = []
    for (n, gap), (m, after) in zip(gaps, gaps[1:]):
        if (gap < 0) != (after < 0):
            share = gap / (gap - after)
            points.append((math.exp(math.log(n) + share * math.log(m / n)), after < 0, n, m))
    return points, [n for n, gap in gaps if gap < 0], [n for n, gap in gaps if not gap < 0]


# What a crossing can lie along: key of the answers, sign, what is said of every value of it.
AXES = {"workers": ("workers", "n = ", "", "n"), "bandwidth": ("nic_bandwidth_GBps", "", " GB/s a NIC", "bandwidth"), "density": ("density", "density ", "", "density")}


def _density_families(found):
    families = {}
    for one in found:
        families.setdefault(tuple((k, v) for k, v in one.facets.items() if k != "density"), {})[one.facets["density"]] = one
    return [family for family in families.values() if len(family) > 1]


def _curves(results, found, along, workers):
    """Of every axis: (axis, n or None, slice that stands for it, {series: {place on the axis: point}})."""
    if "workers" in along:
        for one in found:
            yield "workers", None, one, {series: {p.workers: p for p in points} for series, points in one.curves.items()}
    for axis in ("bandwidth", "density"):
        if axis not in along:
            continue
        for family in families.by_bandwidth(results, found) if axis == "bandwidth" else _density_families(found):
            for n in sorted({n for one in family.values() for n in one.workers()}):
                if workers is None or n == workers:
                    curves = {}
                    for value, one in family.items():
                        for series, points in one.curves.items():
                            curves.setdefault(series, {}).update({value: p for p in points if p.workers == n})
                    yield axis, n, next(iter(family.values())), curves


def crossover(results, platform, sparsifier, against, along=None, workers=None):
    """Every crossing of one exchange with another along the axes `along` (default: all along which the results have several values); at `workers` only where n is no axis."""
    found = chosen(results, platform)
    for one in (sparsifier, against):
        need(results, found, one)
    if along is None:
        along = ["workers", "density"] + ["bandwidth"] * bool(families.by_bandwidth_or_none(results, found))
    answers = []
    for axis, n, one, curves in _curves(results, found, along, workers):
        times = {series: {value: p.mean("iteration_time_s_mean") for value, p in points.items() if math.isfinite(p.mean("iteration_time_s_mean"))} for series, points in curves.items()}
        for other in [s for s in times if s[0] == against]:
            for series in times:
                if series == other or (series[0] in result_files.DENSE and (not sparsifier or axis == "density")) or (sparsifier and series[0] != sparsifier):
                    continue
                points, wins, losses = crossings(times[series], times[other])
                if len(wins) + len(losses) < (1 if axis == "workers" else 2):
                    continue
                closest = min(wins + losses, key=lambda at: abs(math.log(times[series][at] / times[other][at])))
                key, without = AXES[axis][0], {"bandwidth": ("platform",), "density": ("density",)}.get(axis, ())
                told = place(one, found, without)
                if axis == "bandwidth":
                    told = f"{one.facets['platform']} and its kind" + (f", {told}" if told else "")
                answers.append({
                    "along": axis, "place": told + (f", n = {n}" if n else ""), **{k: one.facets[k] for k in KEYS if k not in without}, **({"workers": n} if n else {}),
                    "sparsifier": series[0], "parameters": series[1], "against": other[0], "against_parameters": other[1],
                    "points": [{key: at, "faster": "above" if above else "below", "between": [low, high],
                                "counts": max((curves[s][m].status for s in (series, other) for m in (low, high)), key=RANK.index)} for at, above, low, high in points],
                    "faster_at": wins, "not_faster_at": losses, "closest_at": closest, "closest_ratio": times[series][closest] / times[other][closest]})
    return answers


def crossover_text(answers):
    lines = []
    for a in answers:
        who = f"{a['place']}: {name((a['sparsifier'], a['parameters']))}"
        other = name((a["against"], a["against_parameters"]))
        key, sign, unit, word = AXES[a["along"]]
        if a["points"]:
            parts = [f"{p['faster']} {sign}{p[key]:.4g}{unit} (between the runs at {p['between'][0]:.4g} and {p['between'][1]:.4g}; {WORDS[p['counts']]})" for p in a["points"]]
            lines.append(f"{who} is faster than {other} " + ", ".join(parts) + ".")
        else:
            share = 100 * abs(a["closest_ratio"] - 1)
            what = f"at every {word}" if a["faster_at"] else f"at no {word}"
            lines.append(f"{who} is faster than {other} {what} that was run ({min(a['faster_at'] + a['not_faster_at']):.4g} to {max(a['faster_at'] + a['not_faster_at']):.4g}); "
                         f"closest at {sign}{a['closest_at']:.4g}{unit}, iteration {share:.3g} % {'shorter' if a['closest_ratio'] < 1 else 'longer'}.")
    return lines


def reasons(point, values, padded, dense, dense_values):
    """Why a sparsifier's iteration is as long as it is: texts made of its numbers."""
    total = point.mean("iteration_time_s_mean")
    found = []

    def share(column):
        return point.mean(column) / total

    exchange = point.mean("index_exchange_time_s") + point.mean("value_exchange_time_s")
    found.append(f"exchange {100 * exchange / total:.3g} % of the iteration")
    for column, word in (("selection_time_s", "selection"), ("other_time_s", "other kernels")):
        if share(column) >= SHARE:
            found.append(f"{word} {100 * share(column):.3g} %")
    padding, build_up = values("padding_mean"), values("build_up_mean")
    if padding >= PADDING:
        found.append(f"padding: a padded all-gather of indices sends {padding:.3g} times what is needed" if padded
                     else f"imbalance: the largest selection of a worker is {padding:.3g} times the mean")
    if build_up >= BUILD_UP:
        found.append(f"build-up: the union of the selections is {build_up:.3g} times the wanted k")
    if dense is not None:
        theirs = dense.mean("index_exchange_time_s") + dense.mean("value_exchange_time_s")
        sent, messages, time = values("bytes_sent_per_worker_mean") / dense_values("bytes_sent_per_worker_mean"), values("messages_mean") / dense_values("messages_mean"), \
            exchange / theirs if theirs > 0 else math.nan
        if all(map(math.isfinite, (sent, messages, time))):
            found.append(f"sends {sent:.3g} times dense fp32's bytes in {messages:.3g} times its messages, which takes {time:.3g} times its exchange")
            if sent < 0.9 and time > 1:
                found.append("latency: fewer bytes take more time, so messages and waiting weigh more than bytes")
    return found


def best(results, platform, sparsifier, workers):
    found = chosen(results, platform)
    need(results, found, sparsifier)
    others = {(row.run_id, row.metric_group): row for row in results.rows if row.metric_group != "time"}
    ns = sorted({n for one in found for n in one.workers()})
    n = workers or ns[-1]
    if n not in ns:
        raise result_files.InputError(results.table_file, "", f"a number of workers out of {', '.join(map(str, ns))}", n)

    def values_of(point):
        def values(column):
            group = next(g for g, columns in result_files.GROUPS.items() if column in columns)
            rows = [others.get((row.run_id, group)) for row in point.rows]
            return sum(row.values[column] for row in rows) / len(rows) if all(rows) else math.nan
        return values

    answers = []
    for one in found:
        points = {series: p for series, all_points in one.curves.items() for p in all_points if p.workers == n and math.isfinite(p.mean("iteration_time_s_mean"))}
        dense = points.get(("dense", "{}"))
        ranked = sorted((s for s in points if not sparsifier or s[0] == sparsifier), key=lambda s: (points[s].mean("iteration_time_s_mean"), s))
        if ranked:
            answers.append({"place": place(one, found), **{key: one.facets[key] for key in KEYS}, "workers": n, "ranking": [
                {"sparsifier": s[0], "parameters": s[1], "iteration_time_s": points[s].mean("iteration_time_s_mean"), "speed_up": points[s].mean("speed_up"),
                 "against_dense": dense.mean("iteration_time_s_mean") / points[s].mean("iteration_time_s_mean") if dense else None, "counts": points[s].status,
                 "reasons": reasons(points[s], values_of(points[s]), "padded" in one.facets["all_gather"], dense if s[0] not in result_files.DENSE else None, values_of(dense) if dense else None)} for s in ranked]})
    return answers


def best_text(answers):
    lines = []
    for a in answers:
        lines.append(f"{a['place']}, n = {a['workers']}:")
        for rank, r in enumerate(a["ranking"], 1):
            dense = f", {r['against_dense']:.4g} times as fast as dense fp32" if r["against_dense"] and r["sparsifier"] != "dense" else ""
            counts = "" if r["sparsifier"] in result_files.DENSE else f" ({WORDS[r['counts']]})"
            lines.append(f"  {rank}. {name((r['sparsifier'], r['parameters']))}: {1e3 * r['iteration_time_s']:.4g} ms, speed-up {r['speed_up']:.4g}{dense}{counts}")
            lines.append("     " + "; ".join(r["reasons"]))
    return lines


def number_of(least, most):
    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least < value < most:
            raise argparse.ArgumentTypeError(f"expected a number between {least} and {most}, found {text!r}")
        return value
    return parse


def needed_bandwidth(results, options):
    """The answers of the question bandwidth: every matching run of the directory."""
    rows = results.group("time")
    for key, wanted in (("platform", options.platform), ("sparsifier", options.sparsifier), ("workers", options.workers)):
        values = list(dict.fromkeys(getattr(row, key) for row in rows))
        if wanted is not None and wanted not in values:
            raise result_files.InputError(results.table_file, "", {"workers": "a number of workers"}.get(key, "a " + key) + " out of " + ", ".join(map(str, sorted(values))), wanted)
        rows = [row for row in rows if wanted is None or getattr(row, key) == wanted]
    chosen_keys = [key for key in ("trace", "density", "profile", "all_gather", "all_reduce", "broadcast", "captured_workers", "expansion_requested", "seed")
                   if len({getattr(row, key) for row in rows if row.sparsifier not in result_files.DENSE}) > 1]

    def place_of(row):
        return ", ".join([row.platform, f"density {row.density:g}"] + [f"{key.replace('_', ' ')} {getattr(row, key)}" for key in chosen_keys if key != "density"])

    return bandwidth.answers(results, rows, options.efficiency, options.program, place_of)


def main(arguments=None):
    parser = plot.Arguments(prog="answer.py", description="Answers questions from a result directory.")
    questions = parser.add_subparsers(dest="question", required=True, parser_class=plot.Arguments)
    for question in ("crossover", "best", "bandwidth"):
        one = questions.add_parser(question)
        one.add_argument("--dir", required=True, metavar="RESULT_DIR")
        one.add_argument("--platform", help="only this platform")
        one.add_argument("--sparsifier", help="only this sparsifier")
        one.add_argument("--json", action="store_true", help="print JSON")
        if question == "crossover":
            one.add_argument("--against", default="dense", help="what it is compared with (default dense)")
            one.add_argument("--along", choices=tuple(AXES), help="along this axis only (default: all along which the results have several values)")
            one.add_argument("--workers", type=int, help="with bandwidth and density: at this n only")
        elif question == "best":
            one.add_argument("--workers", type=int, help="number of workers (default: the largest)")
        else:
            one.add_argument("--efficiency", type=number_of(0, 1), required=True, help="speed-up / n that is wanted")
            one.add_argument("--workers", type=int, required=True, help="number of workers")
            one.add_argument("--program", default=os.environ.get("SPARSCALE", "sparscale"), help="the program that times (default: $SPARSCALE or sparscale)")
    options = parser.parse_args(arguments)
    try:
        results = result_files.load(options.dir)
        if options.question == "crossover":
            answers = crossover(results, options.platform, options.sparsifier, options.against, options.along and [options.along], options.workers)
            lines = crossover_text(answers)
        elif options.question == "bandwidth":
            answers = needed_bandwidth(results, options)
            lines = bandwidth.text(answers, name, WORDS)
        else:
            answers = best(results, options.platform, options.sparsifier, options.workers)
            lines = best_text(answers)
        if not answers:
            wanted = {"bandwidth": "platforms that differ in the bandwidth of their NICs only", "density": "several densities"}.get(getattr(options, "along", None), "runs that answer this")
            raise result_files.InputError(results.table_file, "", wanted, "none")
    except result_files.InputError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 2
    except (bandwidth.Failure, OSError) as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answers, indent=1, ensure_ascii=False) if options.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
