"""Figures made of panels of curves: layout in inches, drawing, the table of exactly what is drawn, and the recipe of the standalone script.

A figure module says what its panels show; this module does the rest, so that every such figure looks and reads the same."""
import math
from dataclasses import dataclass, field

from matplotlib.lines import Line2D

from analysis import caption, standalone, style
from analysis.figures import Drawing
from analysis.results import DENSE

BASE_COLUMNS = ("panel", "curve", "sparsifier", "parameters")
ORIGIN_COLUMNS = ("counts_origin", "validated", "kernel_times_origin", "compute_times_origin", "network", "iterations", "seeds")
MOST_MARKERS = 12  # of a curve over iterations
STATUS_RANK = ("captured", "projected", "unvalidated")


@dataclass
class Line:
    """A series' curve in a panel. `points`: dicts with x, y, low, high (None: no band), status, and `cells` for the table."""
    series: tuple
    points: list
    curve: str = "sparsifier"


@dataclass
class Reference:
    """A line that is no series: a straight or sampled curve, named in the table by `name`."""
    name: str
    points: list  # (x, y)
    colour: str = "black"
    dashes: object = (0, (6, 2))
    stretch: bool = False  # drawn to the edges of the panel along its constant y


@dataclass
class Mark:
    """A point beside the curves (a break-even, a member of the Pareto front)."""
    name: str
    series: tuple
    x: float
    y: float
    cells: dict = field(default_factory=dict)


@dataclass
class Panel:
    key: str
    title: str
    ylabel: str
    lines: list
    xlabel: str = "workers n"
    xscale: str = "workers"  # workers, linear or log
    yscale: str = "log"  # log or linear
    references: list = field(default_factory=list)
    marks: list = field(default_factory=list)
    shade: float = None
    ylim: tuple = None
    join: bool = True  # whether a series' points are joined by lines


def origin(point):
    """Cells of the table on where a point's numbers come from."""
    return {"counts_origin": point.counts_origin, "validated": point.validated, "kernel_times_origin": point.kernel_times_origin or None,
            "compute_times_origin": point.compute_times_origin or None, "network": point.network or None, "iterations": point.iterations,
            "seeds": len(point.rows)}


def over_n(series, points, mean, low=None, high=None, scale=lambda point: 1.0):
    """Line over n of a column's mean, with a band between two other columns."""
    found = []
    for p in points:
        factor = scale(p)
        y = p.mean(mean) * factor
        found.append({"x": p.workers, "y": y if y > 0 else math.nan, "low": p.low(low) * factor if low else None,
                      "high": p.high(high) * factor if high else None, "status": p.status, "cells": origin(p)})
    return Line(series, found)


def _values(panel, axis):
    values = []
    for line in panel.lines:
        for p in line.points:
            values.append(p[axis])
    values += [point[0 if axis == "x" else 1] for r in panel.references for point in r.points]
    values += [mark.x if axis == "x" else mark.y for mark in panel.marks]
    return [v for v in values if v is not None and math.isfinite(v)]


def _bands(panel):
    return [v for line in panel.lines for p in line.points for v in (p["low"], p["high"]) if v is not None and math.isfinite(v)]


def y_limits(panels):
    """Limits that hold every panel's values; a band's outliers do not squeeze the curves."""
    values = [v for panel in panels for v in _values(panel, "y")]
    bands = [v for panel in panels for v in _bands(panel)]
    if panels[0].yscale == "linear":
        return (0.0, max(values + bands, default=1.0) * 1.06 or 1.0)
    low, high = style.limits(values + bands, 1.2) or (0.5, 2.0)
    lowest, highest = style.limits(values, 4) or (low, high)
    return max(low, lowest), min(high, highest)


def draw(name, style_name, panels, columns, looks, x_column, value_columns, caption_text, notes=(), captured=None, height_in=1.9, shared_y=False,
         shared_x=False):
    """Lays `panels` out in rows of `columns` and draws them; a Drawing.

    `value_columns`: names of the table's columns for y, low and high. `shared_y`: all panels have one scale and only the first of a row its labels.
    """
    statuses = {p["status"] for panel in panels for line in panel.lines for p in line.points}
    status = style.status_handles(statuses, captured) if captured is not None else []
    sheet_blocks = [[style.series_handle(look) for look in looks.values()], status, list(notes)]
    width = style.WIDTH_IN[style_name]
    limits = {id(panel): panel.ylim or y_limits(panels if shared_y else [panel]) for panel in panels}
    tick_width = max(_tick_width(panel, limits[id(panel)]) for panel in panels)
    side = 0.1 + style.LABEL_PT / 72 + 0.09 + tick_width + 0.06
    gap = 0.14 if shared_y else side
    right = 0.1
    panel_width = (width - side - right - gap * (columns - 1)) / columns
    rows = math.ceil(len(panels) / columns)
    title, foot = (0.2 if any(panel.title for panel in panels) else 0.06), 0.41
    last_foot = foot
    inner_foot = 0.1 if shared_x else foot
    sheet = style.Sheet(style_name, rows * (title + height_in) + (rows - 1) * inner_foot + last_foot, sheet_blocks)
    table, recipe = [], []
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        lowest = number + columns >= len(panels)
        axes = sheet.axes(side + column * (panel_width + gap), row * (title + height_in + inner_foot) + title, panel_width, height_in)
        _x_axis(axes, panel, panel_width, lowest or not shared_x, panels if shared_x else [panel])
        _y_axis(axes, panel, limits[id(panel)])
        if panel.xscale == "workers":
            style.shade_beyond(axes, panel.shade)
        elif any(p["status"] == "unvalidated" for line in panel.lines for p in line.points):
            style.shade_beyond(axes, -math.inf)
        _panel(axes, panel, looks)
        if panel.title:
            axes.set_title(style.plain(panel.title), pad=3, fontsize=style.TEXT_PT)
        if lowest or not shared_x:
            axes.set_xlabel(panel.xlabel, labelpad=2)
        if column == 0 or not shared_y:
            axes.set_ylabel(panel.ylabel)
            axes.yaxis.set_label_coords(-(tick_width + 0.15) / panel_width, 0.5)
        else:
            axes.tick_params(labelleft=False)
        table += _table(panel, x_column, value_columns)
        recipe.append(standalone.panel(axes, {"panel": panel.key}, x=x_column, y=value_columns[0],
                                       **({"low": value_columns[1], "high": value_columns[2]} if len(value_columns) > 2 else {})))
    references = {r.name: r for panel in panels for r in panel.references}
    curves = standalone.series_curves(looks, curve="sparsifier")
    if not all(panel.join for panel in panels):
        curves = [dict(one, line="none") for one in curves]
    curves += [standalone.curve({"curve": r.name}, colour=r.colour, line=r.dashes) for r in references.values()]
    curves += [standalone.curve({"curve": mark}, colour="black", line="none", marker="*")
               for mark in dict.fromkeys(m.name for panel in panels for m in panel.marks)]
    extra = [key for panel in panels for line in panel.lines for p in line.points for key in p["cells"] if key not in ORIGIN_COLUMNS]
    extra += [key for panel in panels for m in panel.marks for key in m.cells if key not in ORIGIN_COLUMNS]
    extra = [key for key in dict.fromkeys(extra) if key not in (x_column, *value_columns)]
    columns_ = BASE_COLUMNS + tuple(extra) + (x_column,) + tuple(value_columns) + ORIGIN_COLUMNS
    return Drawing(name, sheet.figure, columns_, table, caption_text, {"panels": recipe, "curves": curves, "legends": sheet.legends})


def _tick_width(panel, limits):
    if panel.yscale == "log":
        return style.tick_width(*limits)
    return max(style.text_width("0.00"), style.text_width(style.tick_label(round(limits[1]))))


def _x_axis(axes, panel, width_in, labelled, together):
    xs = [x for one in together for x in _values(one, "x")] or [1.0]
    if panel.xscale == "workers":
        ns = sorted({p["x"] for one in together for line in one.lines for p in line.points}) or [1]
        style.workers_axis(axes, ns, width_in, labelled=labelled)
        return
    if panel.xscale == "log":
        low, high = style.limits(xs, 1.25) or (0.5, 2.0)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        style.log_axis(axes.xaxis, low, high)
        thin(axes.xaxis, low, high, width_in)
    else:
        low, high = min(xs), max(xs)
        margin = 0.03 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)
        axes.xaxis.set_major_locator(style.ticker.MaxNLocator(nbins=max(2, int(width_in / 0.4)), integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(style.ticker.FuncFormatter(lambda value, _: f"{value:.6g}"))
    if not labelled:
        axes.tick_params(labelbottom=False)


def thin(axis, low, high, width_in):
    """Drops the labels of a horizontal log axis that would touch their neighbours."""
    ticks, _ = style.log_ticks(low, high)
    kept, end = [], -math.inf
    for tick in ticks:
        at = math.log(tick / low) / math.log(high / low) * width_in
        half = style.text_width(style.tick_label(tick)) / 2
        if at - half > end + 0.05:
            kept.append(tick)
            end = at + half
    axis.set_major_formatter(style.ticker.FuncFormatter(lambda value, _: style.tick_label(value) if any(abs(value / k - 1) < 1e-9 for k in kept) else ""))


def _y_axis(axes, panel, limits):
    if panel.yscale == "log":
        axes.set_yscale("log")
        axes.set_ylim(*limits)
        style.log_axis(axes.yaxis, *limits)
    else:
        axes.set_ylim(*limits)
        axes.yaxis.set_major_locator(style.ticker.MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(style.ticker.FuncFormatter(lambda value, _: f"{value:.4g}"))


def _panel(axes, panel, looks):
    for r in panel.references:
        points = [(x, y) for x, y in r.points if y is not None and math.isfinite(y)]
        if r.stretch and points:
            points = [(axes.get_xlim()[0], points[0][1]), (axes.get_xlim()[1], points[-1][1])]
        if points:
            axes.plot(*zip(*points), color=r.colour, linewidth=0.9, linestyle=r.dashes, zorder=2)
    for line in sorted(panel.lines, key=lambda line: list(looks).index(line.series)):
        look = looks[line.series]
        zorder = 3.2 if line.series[0] in DENSE else 3.0
        if panel.xscale == "linear":
            _over_iterations(axes, line, look, zorder)
        else:
            points = [(p["x"], p["y"], p["low"], p["high"], p["status"]) for p in line.points]
            if panel.join:
                style.curve(axes, points, look, zorder)
            else:
                for point in points:
                    style.curve(axes, [point], look, zorder)
    for mark in panel.marks:
        axes.plot([mark.x], [mark.y], marker="*", markersize=8, markerfacecolor=looks[mark.series].colour, markeredgecolor="black",
                  markeredgewidth=0.6, linestyle="none", zorder=6)


def _over_iterations(axes, line, look, zorder):
    """A dense curve: one piece and few markers (all its points have one status)."""
    points = [p for p in line.points if math.isfinite(p["y"])]
    if not points:
        return
    xs, ys = [p["x"] for p in points], [p["y"] for p in points]
    band = [p for p in points if p["low"] is not None and p["high"] is not None and p["high"] > p["low"]]
    if len(band) > 1:
        axes.fill_between([p["x"] for p in band], [max(p["low"], 1e-300) for p in band], [p["high"] for p in band], facecolor=look.colour, alpha=0.16,
                          edgecolor="none", linewidth=0, zorder=zorder - 1.5)
    status = max((p["status"] for p in points), key=STATUS_RANK.index)
    axes.plot(xs, ys, color=look.colour, linestyle=style.LINE_STYLE[status], dash_capstyle="butt", zorder=zorder,
              marker=look.marker, markevery=max(1, math.ceil(len(xs) / MOST_MARKERS)), markeredgewidth=0.9,
              markerfacecolor=look.colour if status == "captured" else "white")


def _table(panel, x_column, value_columns):
    rows = []
    for line in panel.lines:
        for p in line.points:
            row = {"panel": panel.key, "curve": line.curve, "sparsifier": line.series[0], "parameters": line.series[1], x_column: p["x"], value_columns[0]: p["y"]}
            if len(value_columns) > 2:
                row.update({value_columns[1]: p["low"], value_columns[2]: p["high"]})
            row.update(p["cells"])
            rows.append(row)
    for r in panel.references:
        rows += [{"panel": panel.key, "curve": r.name, x_column: x, value_columns[0]: y} for x, y in r.points]
    for m in panel.marks:
        rows.append({"panel": panel.key, "curve": m.name, "sparsifier": m.series[0], "parameters": m.series[1], x_column: m.x, value_columns[0]: m.y,
                     **m.cells})
    return rows


def note(label, colour="black", dashes=(0, (6, 2)), width=0.9):
    return Line2D([], [], color=colour, linewidth=width, linestyle=dashes, label=label)


STATUS_SENTENCE = ("Captured counts: solid lines, filled markers. Projected: dashed lines, hollow markers. Beyond the validated range: dotted lines, "
                   "hollow markers, shaded ground.")


def not_drawn(panels, looks):
    """Sentence on series without any value in a panel."""
    names = []
    for panel in panels:
        for line in panel.lines:
            if not any(math.isfinite(p["y"]) for p in line.points):
                names.append(f"{looks[line.series].label} ({panel.ylabel}{', ' + panel.title if panel.title else ''})")
    return caption.missing(names)
