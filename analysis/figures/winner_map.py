"""Which exchange has the shortest iteration: a map over n and the bandwidth of the NICs (platforms that differ in nothing else), over n and platforms, and over n and densities."""
import math

from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from analysis import caption, families, files, panels, standalone, style
from analysis.figures import Drawing, NotApplicable
from analysis.results import slices, varying

COLUMNS = ("panel", "line", "workers", "sparsifier", "parameters", "iteration_time_s", "second", "second_parameters", "second_time_s", "dense_time_s", "text",
           "counts_origin", "validated", "kernel_times_origin", "compute_times_origin", "network", "iterations", "seeds")
KEYS = ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")
CELL_IN = 0.27


def draw(results, style_name):
    found = [one for one in slices(results, "time", KEYS) if one.sparse()]
    drawings, across = [], varying(found) if found else []
    swept = [key for key in ("platform", "density") if key in across]
    if found and not swept:
        raise NotApplicable("more than one platform or density", "one of each")
    by_bandwidth = families.by_bandwidth_or_none(results, found)
    maps = [("bandwidth", list(reversed(family.items()))) for family in by_bandwidth]
    for lines_key in swept:
        groups = {}
        for one in found:
            groups.setdefault(tuple((k, v) for k, v in one.facets.items() if k != lines_key), []).append(one)
        for group in groups.values():
            # Platforms that are all of one family have their bandwidths as an axis instead of their names.
            if len(group) > 1 and not (lines_key == "platform" and any(len(family) == len(group) and all(one in group for one in family.values()) for family in by_bandwidth)):
                maps.append((lines_key, [(one.facets[lines_key], one) for one in _ordered(group, lines_key)]))
    kinds = {key for key, _ in maps}
    for lines_key, lines in maps:
        base = "winner_map" if len(kinds) == 1 else f"winner_map-over_{lines_key}"
        names = [key for key in across if key != {"bandwidth": "platform"}.get(lines_key, lines_key)]
        drawings.append(_draw(lines, lines_key, style_name, files.name(base, names, lines[0][1].facets)))
    return drawings


def _ordered(group, lines_key):
    """Densities from the largest; platforms from the one on which dense fp32 is the slowest at the largest n that all have."""
    if lines_key == "density":
        return sorted(group, key=lambda one: -one.facets["density"])
    common = set.intersection(*({p.workers for p in one.curves.get(("dense", "{}"), ())} for one in group))
    if not common:
        return group
    return sorted(group, key=lambda one: -_time(one, ("dense", "{}"), max(common)))


def _time(one, series, n):
    point = next((p for p in one.curves.get(series, ()) if p.workers == n), None)
    return point.mean("iteration_time_s_mean") if point else math.nan


def ranking(one, n):
    """(time, series, point) of every series at n, the fastest first; equal times in the order of figures."""
    order = style.order(one.curves)
    found = [(p.mean("iteration_time_s_mean"), order.index(series), series, p) for series, points in one.curves.items() for p in points if p.workers == n]
    return [(time, series, p) for time, _, series, p in sorted(f for f in found if math.isfinite(f[0]))]


def _line_name(value):
    return value if isinstance(value, str) else caption.number(value)


def _draw(lines, lines_key, style_name, name):
    """`lines`: (value of what the lines stand for, slice) from the top."""
    group = [one for _, one in lines]
    labels = [_line_name(value) for value, _ in lines]
    ns = sorted({n for one in group for n in one.workers()})
    width = style.WIDTH_IN[style_name]
    looks = style.looks({series for one in group for series in one.curves})
    table = []
    for label, one in zip(labels, group):
        for n in ns:
            ranked = ranking(one, n)
            if not ranked:
                continue
            time, series, point = ranked[0]
            dense = _time(one, ("dense", "{}"), n)
            status = max((p.status for _, s, p in ranked), key=panels.STATUS_RANK.index)
            row = {"panel": lines_key, "line": label, "workers": n, "sparsifier": series[0], "parameters": series[1], "iteration_time_s": time,
                   "dense_time_s": dense, "text": _gain(dense / time) if time > 0 else "", **panels.origin(point),
                   "counts_origin": "captured" if status == "captured" else "projected", "validated": status != "unvalidated"}
            if len(ranked) > 1:
                row.update(second=ranked[1][1][0], second_parameters=ranked[1][1][1], second_time_s=ranked[1][0])
            table.append(row)
    winners = [s for s in looks if any((r["sparsifier"], r["parameters"]) == s for r in table)]
    fitted = style.fit({s: looks[s] for s in winners}, width - 0.6)
    handles = [Patch(facecolor=look.colour, edgecolor="none", label=look.label) for look in fitted.values()]
    first = group[0]
    edges, notes = [], []
    worst = {n: max((row.status for one in group for row in one.rows(dense=False) if row.workers == n), key=panels.STATUS_RANK.index, default="captured") for n in ns}
    for status, dashes, label in (("projected", (0, (4, 1.6)), "right of it: counts projected (n > W)"), ("unvalidated", (0, (1, 1.3)), "right of it: not validated")):
        at = next((i for i, n in enumerate(ns) if panels.STATUS_RANK.index(worst[n]) >= panels.STATUS_RANK.index(status)), None)
        if at is not None and status in worst.values():
            edges.append((at - 0.5, dashes))
            notes.append(panels.note(label, "black", dashes, 1.4))
    left = 0.1 + style.LABEL_PT / 72 + 0.1 + max(style.text_width(style.plain(label)) for label in labels) + 0.05
    panel_width, height = width - left - 0.1, CELL_IN * len(group)
    sheet = style.Sheet(style_name, 0.05 + height + 0.41, [handles, notes])
    axes = sheet.axes(left, 0.05, panel_width, height)
    axes.set_xlim(-0.5, len(ns) - 0.5)
    axes.set_ylim(len(group) - 0.5, -0.5)
    cell = panel_width / len(ns)
    for row in table:
        x, y = ns.index(row["workers"]), labels.index(row["line"])
        colour = looks[row["sparsifier"], row["parameters"]].colour
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
        if style.text_width(row["text"]) < cell - 0.04:
            axes.text(x, y, row["text"], ha="center", va="center", fontsize=style.TEXT_PT, color=_ink(colour))
        else:
            row["text"] = ""
    for x, dashes in edges:
        axes.axvline(x, color="white", linewidth=2.6, zorder=5)
        axes.axvline(x, color="black", linewidth=1.4, linestyle=dashes, zorder=6)
    axes.set_xticks(range(len(ns)), [str(n) if _fits(ns, i, cell) else "" for i, n in enumerate(ns)])
    axes.set_yticks(range(len(group)), [style.plain(label) for label in labels])
    axes.tick_params(length=0, pad=3)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("workers n", labelpad=2)
    axes.set_ylabel({"platform": "platform", "density": "density wanted", "bandwidth": "GB/s a NIC"}[lines_key])
    axes.yaxis.set_label_coords(-(left - 0.13) / panel_width, 0.5)
    recipe = {"panels": [standalone.panel(axes, {}, "cells", columns=[float(n) for n in ns], lines=labels, edges=edges, series=[list(s) for s in looks],
                                          looks=[{"colour": standalone.to_hex(look.colour), "text": _ink(look.colour)} for look in looks.values()])],
              "legends": sheet.legends}
    text = caption.join(
        "The exchange with the shortest iteration at every number of workers n, over " + {
            "platform": "platforms (from the one on which dense fp32 takes longest)", "density": "densities",
            "bandwidth": "the bandwidth of the NICs, in which alone the platforms differ"}[lines_key]
        + ". The number is the iteration time of dense fp32 over the winner's (1 where dense fp32 wins). The CSV also has the second best.",
        caption.facets(group), caption.series(group), caption.times(group), caption.counts(group), caption.iterations(group))
    return Drawing(name, sheet.figure, COLUMNS, table, text, recipe)


def _gain(ratio):
    if not math.isfinite(ratio):
        return ""
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 99.95 else f"{ratio:.0f}"


def _fits(ns, index, cell):
    every = 1
    while every * cell < max(style.text_width(str(n)) for n in ns) + 0.05:
        every += 1
    return index % every == 0


def _ink(colour):
    """Black or white, whichever reads better on a colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.18 else "white"
