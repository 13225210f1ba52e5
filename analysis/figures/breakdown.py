"""Iteration time by phase as horizontal stacked bars: a panel per n, in it a bar per sparsifier, baselines on top; a file per platform.

Bars lie, so that a sparsifier's name stands once per row of panels and reads without turning the page.
"""
import math

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import caption, files, standalone, style
from analysis.figures import Drawing
from analysis.results import PHASES, slices, varying

COLUMNS = ("panel", "sparsifier", "parameters", "workers", "unit", *(phase.replace("_time_s", "") for phase in PHASES), "iteration", "p05", "p95",
           "counts_origin", "validated", "kernel_times_origin", "compute_times_origin", "network", "iterations", "seeds")
LABELS = ("forward + backward", "selection", "index exchange", "value exchange", "other")
FILLS = (("#B8B8B8", ""), (style.ORANGE, "\\\\\\\\"), (style.SKY, "////"), (style.BLUE, "...."), (style.YELLOW, "xxxx"))
UNITS = ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (math.inf, 1.0, "s"))
BAR_IN = 0.15
# Panels share one scale unless the largest would leave the smallest unreadable.
SHARED_SCALE_RATIO = 3.0


def unit(longest_s):
    """Factor and name of the unit in which the longest time is between 1 and 1000."""
    return next((factor, name) for below, factor, name in UNITS if longest_s < below)


def draw(results, style_name):
    found = slices(results, "time", ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast"))
    across = varying(found) if found else []
    drawings = []
    for one in found:
        workers = one.workers()
        per_page = 12 if style.wide(style_name) else 8
        chunks = [workers[i:i + per_page] for i in range(0, len(workers), per_page)]
        for chunk in chunks:
            facets = dict(one.facets, workers=[chunk[0], chunk[-1]])
            name = files.name("breakdown", across + (["workers"] if len(chunks) > 1 else []), facets)
            drawings.append(_draw(one, chunk, style_name, name))
    return drawings


def _draw(one, workers, style_name, name):
    looks = style.fit(style.looks(one.curves), 0.22 * style.WIDTH_IN[style_name] + 0.3)
    points = {(series, point.workers): point for series in looks for point in one.curves[series]}
    series_list = list(looks)
    high = {n: max([max(p.mean("iteration_time_s_mean"), p.high("iteration_time_s_p95")) if math.isfinite(p.high("iteration_time_s_p95"))
                    else p.mean("iteration_time_s_mean") for (_, m), p in points.items() if m == n
                    and math.isfinite(p.mean("iteration_time_s_mean"))], default=0.0) for n in workers}
    longest = max(high.values())
    factor, unit_name = unit(longest)
    positive = [value for value in high.values() if value > 0] or [1.0]
    shared = max(positive) / min(positive) <= SHARED_SCALE_RATIO

    dense = ("dense", "{}") in one.curves
    phases = [Patch(facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.4, label=label) for (colour, hatch), label in zip(FILLS, LABELS)]
    notes = []
    if dense:
        notes.append(Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (4, 1.5)), label="break-even with dense fp32"))
    statuses = {p.status for p in points.values() if p.workers in workers}
    if "unvalidated" in statuses:
        notes.append(Patch(facecolor=style.SHADE, edgecolor="#BBBBBB", linewidth=0.4, label="beyond the validated n"))

    width = style.WIDTH_IN[style_name]
    left = 0.1 + max(style.text_width(look.label) for look in looks.values())
    columns = min(len(workers), 4 if style.wide(style_name) else 2)
    gap, right, title, axis = 0.14, 0.14, 0.17, 0.2 if not shared else 0.06
    panel_width = (width - left - right - gap * (columns - 1)) / columns
    rows = math.ceil(len(workers) / columns)
    panel_height = BAR_IN * len(series_list) + 0.08
    step = title + panel_height + axis
    sheet = style.Sheet(style_name, rows * step + (0.38 if shared else 0.22), [phases, notes])
    recipe, parts = [], [{"column": phase.replace("_time_s", ""), "colour": colour, "hatch": hatch} for phase, (colour, hatch) in zip(PHASES, FILLS)]
    for number, n in enumerate(workers):
        row, column = divmod(number, columns)
        axes = sheet.axes(left + column * (panel_width + gap), row * step + title, panel_width, panel_height)
        here = [points[series, n] for series in series_list if (series, n) in points]
        sparse = [p for p in here if p.sparsifier not in ("dense", "dense_fp16")] or here
        status = max((p.status for p in sparse), key=["captured", "projected", "unvalidated"].index)
        if status == "unvalidated":
            axes.set_facecolor(style.SHADE)
        for place, series in enumerate(series_list):
            point = points.get((series, n))
            if point is not None:
                _bar(axes, place, point, factor)
        if dense and (("dense", "{}"), n) in points:
            total = points[("dense", "{}"), n].mean("iteration_time_s_mean") * factor
            if math.isfinite(total):
                axes.axvline(total, color="black", linewidth=0.9, linestyle=(0, (4, 1.5)), zorder=4)
        limit = (longest if shared else high[n]) * factor
        axes.set_xlim(0, limit * 1.04 if limit > 0 else 1)
        axes.set_ylim(len(series_list) - 0.5 + 0.2, -0.5 - 0.2)
        axes.set_yticks(range(len(series_list)), [looks[series].label for series in series_list] if column == 0 else [""] * len(series_list))
        axes.tick_params(axis="y", length=0, pad=2)
        axes.tick_params(axis="x", pad=1.5)
        axes.xaxis.set_major_locator(style.ticker.MaxNLocator(nbins=max(2, int(panel_width / 0.36)), steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(style.ticker.FuncFormatter(lambda value, _: f"{value:.6g}"))
        if shared and number + columns < len(workers):
            axes.tick_params(axis="x", labelbottom=False)
        words = {"captured": "captured", "projected": "projected", "unvalidated": "not validated"}[status]
        axes.set_title(f"n = {n}, {words}", pad=2.5, fontsize=style.TEXT_PT)
        for spine in ("top", "right"):
            axes.spines[spine].set_visible(False)
        recipe.append(standalone.panel(axes, {"panel": f"n = {n}"}, "bars", series=[list(series) for series in series_list], parts=parts))
    label = f"iteration time ({unit_name})" + ("" if shared else ", scales differ")
    sheet.figure.text((left + (width - left - right) / 2) / width, 0.05 / sheet.height, label, ha="center", va="bottom", fontsize=style.LABEL_PT)
    return Drawing(name, sheet.figure, COLUMNS, _table(one, series_list, workers, factor, unit_name), _caption(one, workers, shared),
                   {"panels": recipe, "legends": sheet.legends})


def _bar(axes, place, point, factor):
    start = 0.0
    for phase, (colour, hatch) in zip(PHASES, FILLS):
        length = point.mean(phase) * factor
        if math.isfinite(length) and length > 0:
            axes.barh(place, length, left=start, height=0.78, color=colour, hatch=hatch, edgecolor="black", linewidth=0.3, zorder=2)
            start += length
    low, high = point.low("iteration_time_s_p05") * factor, point.high("iteration_time_s_p95") * factor
    if math.isfinite(low) and math.isfinite(high) and high > low:
        axes.plot([low, high], [place, place], color="black", linewidth=0.8, zorder=5)
        axes.plot([low, high], [place, place], color="black", marker="|", markersize=3.5, markeredgewidth=0.8, linestyle="none", zorder=5)


def _table(one, series_list, workers, factor, unit_name):
    rows = []
    for n in workers:
        for series in series_list:
            for point in one.curves[series]:
                if point.workers == n:
                    row = {"panel": f"n = {n}", "sparsifier": series[0], "parameters": series[1], "workers": n, "unit": unit_name,
                           "iteration": point.mean("iteration_time_s_mean") * factor, "p05": point.low("iteration_time_s_p05") * factor,
                           "p95": point.high("iteration_time_s_p95") * factor, "counts_origin": point.counts_origin,
                           "validated": point.validated, "kernel_times_origin": point.kernel_times_origin,
                           "compute_times_origin": point.compute_times_origin, "network": point.network, "iterations": point.iterations,
                           "seeds": len(point.rows)}
                    row.update({phase.replace("_time_s", ""): point.mean(phase) * factor for phase in PHASES})
                    rows.append(row)
    return rows


def _caption(one, workers, shared):
    return caption.join(
        f"Iteration time of n workers by phase on {one.facets['platform']}.",
        caption.facets([one]) + ("" if list(workers) == one.workers() else f" Drawn here: n = {workers[0]} to {workers[-1]}."),
        caption.series([one]),
        caption.times([one]), caption.counts([one]),
        caption.iterations([one], "whiskers"),
        "The dashed line is the iteration time of dense fp32 at the same n: shorter bars are faster than dense training. "
        + ("All panels share one scale." if shared else "Every panel has a scale of its own."))
