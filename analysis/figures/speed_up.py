"""Speed-up against n, a panel per platform; under it, for every baseline, where each sparsifier is faster and its break-even points."""
import math

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import caption, families, files, standalone, style
from analysis.figures import Drawing
from analysis import results as result_files
from analysis.results import DENSE, slices, varying

COLUMNS = ("panel", "curve", "sparsifier", "parameters", "baseline", "seed", "workers", "value", "low", "high", "floor", "workers_to", "counts_origin", "validated",
           "kernel_times_origin", "compute_times_origin", "network", "iterations", "seeds")
ROW_IN = 0.14
IDEAL = Line2D([], [], color="black", linewidth=0.7, linestyle=(0, (6, 2)), label="ideal, y = n")
STAR = Line2D([], [], color="none", marker="*", markersize=7, markerfacecolor="white", markeredgecolor="black", markeredgewidth=0.7,
              label="break-even with dense fp32")
FLOOR = Patch(facecolor="none", edgecolor="#444444", hatch="/////", linewidth=0.3, label="up to an all-gather that does not pad")
# An all-gather that neither pads nor waits for the largest block: what one that does not pad could reach (docs/collectives.md).
PADDED, UNPADDED = "ring_padded", "pipelined_ready"
ENTRY_BYTES = 12  # at most: an index of 8 and a value of 4


def band(row):
    """Speed-up at the 5 % and 95 % quantiles of a row's iteration time, or with every kernel time at its quartiles where that is wider; the lower one first, NaN where neither is known."""
    mean = row.values["iteration_time_s_mean"]
    times = [[row.values[f"iteration_time_s_{q}"] for q in ends if row.values[f"iteration_time_s_{q}"] > 0] for ends in (("p95", "kernel_high"), ("p05", "kernel_low"))]
    return tuple(row.values["speed_up"] * mean / pick(found) if found else math.nan for found, pick in zip(times, (max, min)))


def point_band(point):
    """The same over the seeds of a point: lowest and highest."""
    bands = [band(row) for row in point.rows]
    return min(b[0] for b in bands) if all(math.isfinite(b[0]) for b in bands) else math.nan, max(b[1] for b in bands) if all(math.isfinite(b[1]) for b in bands) else math.nan


def bands_sentence(page):
    """What bands are, in words."""
    return caption.iterations(page, "bands") + (" Or to the iteration time with every kernel time at its lower and upper quartile in the profile, where that is wider."
                                                if any(math.isfinite(row.values["iteration_time_s_kernel_low"]) for one in page for row in one.rows()) else "")


def bandwidth_Bps(platform, workers):
    """The least bandwidth that a worker has to itself when all send at once; None where that depends on who sends to whom."""
    node, network = platform["node"], platform["network"]
    if workers <= node["devices"]:
        return node["device_link"]["bandwidth_GBps"] * 1e9 if "device_link" in node else None
    nic = node["nics"]["bandwidth_GBps"] * node["nics"]["count"] / node["devices"]
    if network["topology"] == "fat_tree":
        nic = min(nic, network["link"]["bandwidth_GBps"] * network["uplinks"] / (network["nodes_per_switch"] * node["devices"]))
    return nic * 1e9 if network["topology"] in ("crossbar", "fat_tree") else None


def floors(results, found):
    """Speed-ups without the padding of the all-gather: {(id of a slice, series, n): (speed-up, whether it was run)} of slices whose all-gather pads.

    Where the results have the same with the all-gather UNPADDED, it is that run's. Else, where phases do not overlap, what the same ring would save without padding is bounded from above by
    the bytes that are nothing but padding, (n - 1) (max k_i - mean k_i) entries, over the least bandwidth, and by the share 1 - 1/f of the index exchange."""
    selections, known = {row.run_id: row for row in results.group("selection")}, {}
    try:
        platforms = families.documents(results.directory)
    except result_files.InputError:
        platforms = {}  # results that were passed on alone, or of an earlier version
    for one in found:
        if one.facets["all_gather"] != PADDED:
            continue
        other = next((o for o in found if o.facets == dict(one.facets, all_gather=UNPADDED)), None)
        platform = platforms.get(one.facets["platform"].partition(" ")[0])
        for series, points in one.sparse().items():
            for p in points:
                speed, time = p.mean("speed_up"), p.mean("iteration_time_s_mean")
                ran = next((q for q in other.curves.get(series, ()) if q.workers == p.workers), None) if other else None
                rows = [selections.get(row.run_id) for row in p.rows]
                if ran is not None:
                    if ran.mean("speed_up") > speed:
                        known[id(one), series, p.workers] = (ran.mean("speed_up"), True)
                elif platform and all(rows) and time > 0 and all((row.timeline, row.disturbance) == ("sequential", "{}") and row.index_encoding != "bitmap" for row in p.rows):
                    bandwidth = bandwidth_Bps(platform, p.workers)
                    f, excess = (sum(values) / len(rows) for values in (
                        [row.values["padding_mean"] for row in rows], [row.values["selected_max_mean"] - row.values["selected_sum_mean"] / p.workers for row in rows]))
                    if bandwidth and f > 1 and excess > 0:
                        saved = min(p.mean("index_exchange_time_s") * (1 - 1 / f), (p.workers - 1) * excess * ENTRY_BYTES / bandwidth)
                        known[id(one), series, p.workers] = (speed * time / (time - saved), False)
    return known


def draw(results, style_name):
    found = slices(results, "time", ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast"))
    across = varying(found) if found else []
    without_padding = floors(results, found)
    drawings = []
    for page, whole in files.pages(found, "platform", 3 if style.wide(style_name) else 1):
        names = [key for key in across if key != "platform" or not whole]
        facets = dict(page[0].facets, platform=[one.facets["platform"] for one in page])
        drawings.append(_draw(results, page, without_padding, style_name, files.name("speed_up", names, facets)))
    return drawings


def entries_of(results, one):
    """Break-even entries of a slice."""
    facets, seeds = one.facets, {row.seed for row in one.rows()}
    return [e for e in results.break_even if (e.platform, e.profile, e.all_gather) == (facets["platform"], facets["profile"], facets["all_gather"])
            and all(key not in facets or result_files.same_key(facets[key], value) for key, value in e.more.items()) and e.density == facets["density"] and e.seed in seeds and (e.sparsifier, e.parameters) in one.sparse()]


def wins(entry, first, last):
    """Ranges of n, inside those that were run, in which the sparsifier is the faster one: between two crossings the run inside decides."""
    edges = [first] + [p for p in entry.points if first < p < last] + [last]
    ranges = []
    for low, high in zip(edges, edges[1:]):
        if any(low <= n <= high for n in entry.wins_at) and not any(low < n < high for n in entry.loses_at):
            ranges.append((low, high))
    return ranges


def in_all(lists):
    """Ranges that lie in every one of the lists of ranges."""
    common = lists[0]
    for ranges in lists[1:]:
        pairs = [(max(a, c), min(b, d)) for a, b in common for c, d in ranges]
        common = [(low, high) for low, high in pairs if low < high or (low == high and len(pairs) == 1)]
    return common


def on_curve(points, workers):
    """Speed-up at a number of workers between two runs, interpolated in both logarithms; NaN outside."""
    for a, b in zip(points, points[1:]):
        ya, yb = a.mean("speed_up"), b.mean("speed_up")
        if a.workers <= workers <= b.workers and ya > 0 and yb > 0:
            share = math.log(workers / a.workers) / math.log(b.workers / a.workers)
            return ya * (yb / ya) ** share
    return math.nan


def _draw(results, page, without_padding, style_name, name):
    looks = style.fit(style.looks({series for one in page for series in one.curves}), 0.22 * style.WIDTH_IN[style_name] + 0.3)
    sparse = [series for series in looks if series[0] not in DENSE]
    entries = {id(one): entries_of(results, one) for one in page}
    baselines = [b for b in DENSE if any(e.baseline == b for found in entries.values() for e in found)]
    statuses = {row.status for one in page for row in one.rows()}
    status = style.status_handles(statuses, page[0].facets["captured_workers"])
    # Beside all other marks a padding of less than 1 % of the speed-up is not to be seen.
    floor = {key: value for key, value in without_padding.items() if key[0] in {id(one) for one in page}}
    seen = any(floor[key][0] > 1.01 * p.mean("speed_up") for one in page for series, points in one.curves.items() for p in points
               for key in [(id(one), series, p.workers)] if key in floor)
    notes = [IDEAL] + [FLOOR] * seen
    crossings = any(e.points and e.baseline == "dense" for found in entries.values() for e in found)
    if crossings:
        notes.append(STAR)

    width = style.WIDTH_IN[style_name]
    left = 0.52 if not baselines else max(0.52, 0.1 + max(style.text_width(looks[s].label) for s in sparse))
    right, gap, title = 0.1, 0.14, 0.2
    panel_width = (width - left - right - gap * (len(page) - 1)) / len(page)
    panel_height, strip, strip_title = 2.3, ROW_IN * max(1, len(sparse)) + 0.06, 0.19
    total = title + panel_height + len(baselines) * (strip_title + strip) + 0.4
    sheet = style.Sheet(style_name, total, [[style.series_handle(look) for look in looks.values()], status, notes])

    values = [p.mean("speed_up") for one in page for points in one.curves.values() for p in points] + [value for value, _ in floor.values()]
    ns = sorted({n for one in page for n in one.workers()})
    bounds = style.limits(values + [float(n) for n in ns], 1.15) or (0.5, 2.0)
    table, recipe = [], []
    for column, one in enumerate(page):
        x = left + column * (panel_width + gap)
        axes = sheet.axes(x, title, panel_width, panel_height)
        _panel(axes, one, looks, ns, bounds, panel_width, not baselines, {key[1:]: value[0] for key, value in floor.items() if key[0] == id(one)}, table)
        recipe.append(standalone.panel(axes, {"panel": one.facets["platform"]}, x="workers", y="value", low="low", high="high", floor="floor"))
        axes.set_title(style.plain(one.facets["platform"]), pad=3)
        if column == 0:
            axes.set_ylabel("speed-up")
        else:
            axes.tick_params(labelleft=False)
        for entry in entries[id(one)]:
            if entry.baseline == "dense":
                _stars(axes, one, entry, looks)
        for number, baseline in enumerate(baselines):
            top = title + panel_height + number * (strip_title + strip) + strip_title
            below = sheet.axes(x, top, panel_width, strip)
            mine = [e for e in entries[id(one)] if e.baseline == baseline]
            _strip(below, one, mine, sparse, looks, ns, panel_width, number == len(baselines) - 1, column == 0, table)
            recipe.append(standalone.panel(below, {"panel": one.facets["platform"], "baseline": baseline}, "ranges",
                                           series=[[*series, standalone.to_hex(looks[series].colour)] for series in sparse]))
            below.set_title(f"bars: faster than {style.look(baseline).label}", fontsize=style.TEXT_PT, pad=2)
        (below if baselines else axes).set_xlabel("workers n")
    curves = [dict(one, hatch=look.hatch * 2) for one, look in zip(standalone.series_curves(looks, curve="speed_up"), looks.values())] + [
        standalone.curve({"curve": "ideal"}, colour="black", line=(0, (6, 2))),
        standalone.curve({"curve": "break_even", "baseline": "dense"}, colour="black", line="none", marker="*")]
    return Drawing(name, sheet.figure, COLUMNS, table, _caption(page, entries, style.looks(looks), floor if seen else {}),
                   {"panels": recipe, "curves": curves, "legends": sheet.legends})


def _panel(axes, one, looks, ns, bounds, panel_width, labelled, floor, table):
    style.workers_axis(axes, ns, panel_width, labelled=labelled)
    style.shade_beyond(axes, one.validated_up_to())
    axes.set_yscale("log", base=2)
    axes.set_ylim(*bounds)
    style.log_axis(axes.yaxis, *bounds, base=2)
    edges = axes.get_xlim()
    axes.plot(edges, edges, color="black", linewidth=0.7, linestyle=(0, (6, 2)), zorder=2)
    platform = one.facets["platform"]
    for n in ns:
        table.append({"panel": platform, "curve": "ideal", "workers": n, "value": float(n)})
    for series, look in looks.items():
        points = one.curves.get(series, ())
        style.curve(axes, [(p.workers, p.mean("speed_up") if p.mean("speed_up") > 0 else math.nan, *point_band(p), p.status) for p in points], look,
                    zorder=3.2 if series[0] in DENSE else 3.0)
        fill = [(p.workers, p.mean("speed_up"), floor[series, p.workers]) for p in points if (series, p.workers) in floor]
        if len(fill) > 1:
            axes.fill_between(*zip(*fill), facecolor="none", edgecolor=look.colour, hatch=look.hatch * 2, linewidth=0.3, alpha=0.6, zorder=2.2)
        for p in points:
            table.append({"panel": platform, "curve": "speed_up", "sparsifier": series[0], "parameters": series[1], "workers": p.workers,
                          "value": p.mean("speed_up"), **dict(zip(("low", "high"), point_band(p))), "floor": floor.get((series, p.workers)), "counts_origin": p.counts_origin, "validated": p.validated,
                          "kernel_times_origin": p.kernel_times_origin, "compute_times_origin": p.compute_times_origin, "network": p.network,
                          "iterations": p.iterations, "seeds": len(p.rows)})


def _stars(axes, one, entry, looks):
    series = (entry.sparsifier, entry.parameters)
    for workers in entry.points:
        y = on_curve(one.curves[series], workers)
        if math.isfinite(y):
            axes.plot([workers], [y], marker="*", markersize=8, markerfacecolor=looks[series].colour, markeredgecolor="black", markeredgewidth=0.6,
                      linestyle="none", zorder=6)


def _strip(axes, one, entries, sparse, looks, ns, panel_width, labelled, names, table):
    style.workers_axis(axes, ns, panel_width, labelled=labelled)
    axes.set_ylim(len(sparse) - 0.5, -0.5)
    axes.set_yticks(range(len(sparse)), [looks[s].label for s in sparse] if names else [""] * len(sparse))
    axes.tick_params(axis="y", length=0, pad=2)
    style.shade_beyond(axes, one.validated_up_to())
    first, last = min(ns), max(ns)
    low_x, high_x = axes.get_xlim()
    per_inch = math.log(high_x / low_x) / panel_width
    # The baselines' counts are never projected.
    captured = max([row.workers for row in one.rows(dense=False) if row.status == "captured"], default=0)
    for place, series in enumerate(sparse):
        axes.axhline(place, color="#CCCCCC", linewidth=0.5, zorder=1)
        mine = [e for e in entries if (e.sparsifier, e.parameters) == series]
        if not mine:
            continue
        ranges = in_all([wins(entry, first, last) for entry in mine])
        seed = mine[0].seed if len(mine) == 1 else None
        for low, high in ranges:
            # A range of one n (all that was run) still gets a visible bar.
            left, right = (low, high) if high > low else (low / 1.05, high * 1.05)
            for start, end, filled in ((left, min(right, max(captured, left)), True), (max(left, captured), right, False)):
                if end > start:
                    axes.barh(place, end - start, left=start, height=0.62, facecolor=looks[series].colour if filled else "white",
                              edgecolor=looks[series].colour, linewidth=0.9, zorder=2)
            table.append({"panel": one.facets["platform"], "curve": "faster", "sparsifier": series[0], "parameters": series[1],
                          "baseline": mine[0].baseline, "seed": seed, "seeds": len(mine), "workers": low, "workers_to": high})
        for entry in mine:
            for workers in entry.points:
                table.append({"panel": one.facets["platform"], "curve": "break_even", "sparsifier": series[0], "parameters": series[1],
                              "baseline": entry.baseline, "seed": entry.seed, "workers": workers,
                              "value": on_curve(one.curves[series], workers)})
        if all(not e.wins_at and not e.points for e in mine) and any(e.loses_at for e in mine):
            axes.text(first, place, "slower at every n", ha="left", va="center", fontsize=style.TEXT_PT, color="#555555", zorder=5,
                      bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.4})
        spread = {}
        for entry in mine:
            for index, workers in enumerate(entry.points):
                spread.setdefault(index, []).append(workers)
        for found in spread.values():
            text = _short(min(found)) if _short(min(found)) == _short(max(found)) else f"{_short(min(found))}–{_short(max(found))}"
            for workers in found:
                axes.plot([workers, workers], [place - 0.45, place + 0.45], color="black", linewidth=1.3, zorder=4)
            # Beside the mark: on the side where no bar is, if the number has room there.
            room = (style.text_width(text) + 0.06) * per_inch
            bar_above = any(low <= max(found) < high for low, high in ranges)
            fits_above, fits_below = math.log(high_x / max(found)) > room, math.log(min(found) / low_x) > room
            if fits_above and not (bar_above and fits_below):
                at, align = max(found) * math.exp(0.035 * per_inch), "left"
            else:
                at, align = min(found) * math.exp(-0.035 * per_inch), "right"
            axes.text(at, place, text, ha=align, va="center", fontsize=style.TEXT_PT, zorder=5,
                      bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.4})
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)


def _short(workers):
    return f"{workers:.1f}" if workers < 100 else f"{workers:.0f}"


def _caption(page, entries, looks, floor):
    sentences = []
    ran = {was_run for _, was_run in floor.values()}
    hatched = ("" if not floor else "Hatched: what an all-gather that does not pad could add, by "
               + " and ".join(["the runs with the all-gather " + UNPADDED] * (True in ran) + ["at most the bytes that are padding over the least bandwidth that a worker has"] * (False in ran)) + ".")
    for one in page:
        found = entries[id(one)]
        seeds = {e.seed for e in found}
        for baseline, seed in dict.fromkeys((e.baseline, e.seed) for e in found):
            parts, faster, slower = [], [], []
            for e in found:
                if (e.baseline, e.seed) == (baseline, seed):
                    label = looks[e.sparsifier, e.parameters].label
                    if e.points:
                        parts.append(f"{label} n = " + caption.listing(_short(p) for p in e.points))
                    elif e.wins_at and not e.loses_at:
                        faster.append(label)
                    elif e.loses_at and not e.wins_at:
                        slower.append(label)
            parts += [f"{caption.listing(names)} {word} at every n" for names, word in ((faster, "faster"), (slower, "slower")) if names]
            place = f"{one.facets['platform']}, against {style.look(baseline).label}" + (f", seed {seed}" if len(seeds) > 1 else "")
            sentences.append(place + ": " + (", ".join(parts) or "nothing known"))
    return caption.join(
        "Speed-up against the number of workers n: n times the iteration time of one worker without communication, divided by the iteration time "
        "of n workers. The ideal is n.",
        caption.facets(page), caption.series(page), caption.times(page), caption.counts(page),
        bands_sentence(page), hatched,
        "Captured counts: solid lines, filled markers. Projected: dashed lines, hollow markers. Beyond the validated range: dotted lines, "
        "hollow markers, shaded ground.",
        "Strips: filled bars (hollow where counts are projected) show where a sparsifier is faster than the baseline (with several "
        "seeds: with every seed). Break-even points, where the "
        "iteration times cross, are interpolated in both logarithms between the n that were run"
        + (": " + "; ".join(sentences) + "." if sentences else "; there is none in these results."))
