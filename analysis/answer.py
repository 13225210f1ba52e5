#!/usr/bin/env python3
"""Answers questions from a result directory: at which n one exchange becomes faster than another (crossover), which one is the fastest and
why (best). Exit status: 0 answered, 2 wrong input or usage."""
import json
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import plot  # noqa: E402
from analysis import results as result_files  # noqa: E402

KEYS = ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")
WORDS = {"captured": "captured counts", "projected": "projected counts", "unvalidated": "counts projected beyond the validated range"}
RANK = tuple(WORDS)
# What is counted as a reason: a phase's share of the iteration, padding and build-up beyond these.
SHARE, PADDING, BUILD_UP = 0.05, 1.1, 1.1


def name(series):
    return series[0] + ("" if series[1] == "{}" else " " + series[1])


def place(one, found):
    """What tells a slice apart from the others."""
    keys = ["platform", "density"] + [key for key in result_files.varying(found) if key not in ("platform", "density")]
    return ", ".join(f"{key.replace('_', ' ')} {one.facets[key]:g}" if key == "density" else str(one.facets[key]) if key == "platform" else f"{key.replace('_', ' ')} {one.facets[key]}"
                     for key in keys if one.facets.get(key) is not None)


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
    """Where the iteration time of `mine` crosses that of `theirs` (both {n: time}): list of (n, whether mine is the faster one above, last n
    below, first n above), interpolated in log n and log time; and the n at which mine is faster, and is not."""
    common = [n for n in sorted(mine) if n in theirs and mine[n] > 0 and theirs[n] > 0]
    gaps = [(n, math.log(mine[n] / theirs[n])) for n in common]
    points = []
    for (n, gap), (m, after) in zip(gaps, gaps[1:]):
        if (gap < 0) != (after < 0):
            share = gap / (gap - after)
            points.append((math.exp(math.log(n) + share * math.log(m / n)), after < 0, n, m))
    return points, [n for n, gap in gaps if gap < 0], [n for n, gap in gaps if not gap < 0]


def crossover(results, platform, sparsifier, against):
    found = chosen(results, platform)
    for one in (sparsifier, against):
        need(results, found, one)
    answers = []
    for one in found:
        times = {series: {p.workers: p.mean("iteration_time_s_mean") for p in points if math.isfinite(p.mean("iteration_time_s_mean"))} for series, points in one.curves.items()}
        status = {(series, p.workers): p.status for series, points in one.curves.items() for p in points}
        for other in [s for s in times if s[0] == against]:
            for series in times:
                if series == other or (series[0] in result_files.DENSE and not sparsifier) or (sparsifier and series[0] != sparsifier):
                    continue
                points, wins, losses = crossings(times[series], times[other])
                if not wins and not losses:
                    continue
                common = wins + losses
                closest = min(common, key=lambda n: abs(math.log(times[series][n] / times[other][n])))
                answers.append({
                    "place": place(one, found), **{key: one.facets[key] for key in KEYS}, "sparsifier": series[0], "parameters": series[1], "against": other[0], "against_parameters": other[1],
                    "points": [{"workers": n, "faster": "above" if above else "below", "between": [low, high],
                                "counts": max((status[s, m] for s in (series, other) for m in (low, high)), key=RANK.index)} for n, above, low, high in points],
                    "faster_at": wins, "not_faster_at": losses, "closest_at": closest, "closest_ratio": times[series][closest] / times[other][closest]})
    return answers


def crossover_text(answers):
    lines = []
    for a in answers:
        who = f"{a['place']}: {name((a['sparsifier'], a['parameters']))}"
        other = name((a["against"], a["against_parameters"]))
        if a["points"]:
            parts = [f"{p['faster']} n = {p['workers']:.4g} (between the runs at {p['between'][0]} and {p['between'][1]}; {WORDS[p['counts']]})" for p in a["points"]]
            lines.append(f"{who} is faster than {other} " + ", ".join(parts) + ".")
        else:
            share = 100 * abs(a["closest_ratio"] - 1)
            what = "at every n" if a["faster_at"] else "at no n"
            lines.append(f"{who} is faster than {other} {what} that was run ({min(a['faster_at'] + a['not_faster_at'])} to {max(a['faster_at'] + a['not_faster_at'])}); "
                         f"closest at n = {a['closest_at']}, iteration {share:.3g} % {'shorter' if a['closest_ratio'] < 1 else 'longer'}.")
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


def main(arguments=None):
    parser = plot.Arguments(prog="answer.py", description="Answers questions from a result directory.")
    questions = parser.add_subparsers(dest="question", required=True, parser_class=plot.Arguments)
    for question in ("crossover", "best"):
        one = questions.add_parser(question)
        one.add_argument("--dir", required=True, metavar="RESULT_DIR")
        one.add_argument("--platform", help="only this platform")
        one.add_argument("--sparsifier", help="only this sparsifier")
        one.add_argument("--json", action="store_true", help="print JSON")
        if question == "crossover":
            one.add_argument("--against", default="dense", help="what it is compared with (default dense)")
        else:
            one.add_argument("--workers", type=int, help="number of workers (default: the largest)")
    options = parser.parse_args(arguments)
    try:
        results = result_files.load(options.dir)
        if options.question == "crossover":
            answers = crossover(results, options.platform, options.sparsifier, options.against)
            lines = crossover_text(answers)
        else:
            answers = best(results, options.platform, options.sparsifier, options.workers)
            lines = best_text(answers)
        if not answers:
            raise result_files.InputError(results.table_file, "", "runs that answer this", "none")
    except result_files.InputError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 2
    print(json.dumps(answers, indent=1, ensure_ascii=False) if options.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
