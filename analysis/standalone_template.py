#!/usr/bin/env python3
"""Draws a figure again from the CSV file beside it (same name, ending .csv). Needs matplotlib only; change what you like.

    python3 @NAME@.py [OUTPUT.pdf|.svg|.png]     (default: @NAME@-redrawn.pdf)
"""
import csv
import json
import math
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

# Layout and looks: sizes in inches, boxes as fractions of the figure. All numbers that are drawn come from the CSV.
SPEC = json.loads(r"""@SPEC@""")
LINES = {"captured": "-", "projected": (0, (4, 1.6)), "not validated": (0, (1, 1.3))}
ORDER = ("captured", "projected", "not validated")


def number(text):
    return float(text) if text not in ("", None) else math.nan


def status(row):
    if row.get("counts_origin", "captured") != "projected":
        return "captured"
    return "projected" if row.get("validated") == "true" else "not validated"


def matching(rows, where):
    """Rows whose cells are those of `where`; numbers are compared as numbers."""
    def same(cell, value):
        return cell == value if isinstance(value, str) else cell != "" and float(cell) == value
    return [row for row in rows if all(same(row.get(key, ""), value) for key, value in where.items())]


def curve(axes, panel, one, rows):
    points = [(number(row[panel["x"]]), number(row[panel["y"]]), row) for row in matching(rows, {**panel["where"], **one["where"]})]
    points = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if not points:
        return
    low, high = panel.get("low"), panel.get("high")
    band = [(x, number(row[low]), number(row[high])) for x, _, row in points] if low and one.get("marker") and not one.get("bars") else []
    band = [b for b in band if all(map(math.isfinite, b))]
    if len(band) > 1:
        axes.fill_between([b[0] for b in band], [b[1] for b in band], [b[2] for b in band], facecolor=one["colour"], alpha=0.16, edgecolor="none",
                          linewidth=0)
    if one.get("bars"):
        for x, _, row in points:
            axes.plot([x, x], [max(number(row[low]), min(panel["ylim"])), min(number(row[high]), max(panel["ylim"]))], color="#7F7F7F", linewidth=2.2, alpha=0.6, solid_capstyle="butt", zorder=2.5)
    if panel.get("floor") and one.get("hatch") is not None:
        fill = [(x, y, number(row[panel["floor"]])) for x, y, row in points]
        fill = [f for f in fill if math.isfinite(f[2])]
        axes.fill_between([f[0] for f in fill], [f[1] for f in fill], [f[2] for f in fill], facecolor="none", edgecolor=one["colour"], hatch=one["hatch"], linewidth=0.3, alpha=0.6)
    if not one.get("marker"):
        axes.plot([p[0] for p in points], [p[1] for p in points], color=one["colour"], linewidth=0.9, linestyle=dashes(one["line"]), zorder=2)
        return
    if one.get("line") != "none":
        # Pieces of one certainty: a piece between two points is drawn as the less certain of them.
        kinds = [max(status(a[2]), status(b[2]), key=ORDER.index) for a, b in zip(points, points[1:])]
        first = 0
        for i in range(len(kinds)):
            if i + 1 == len(kinds) or kinds[i + 1] != kinds[first]:
                axes.plot([p[0] for p in points[first:i + 2]], [p[1] for p in points[first:i + 2]], color=one["colour"], linestyle=LINES[kinds[first]],
                          dash_capstyle="butt")
                first = i + 1
    every = max(1, math.ceil(len(points) / 12))
    for x, y, row in points[::every]:
        axes.plot([x], [y], marker=one["marker"], color=one["colour"], linestyle="none", markeredgewidth=0.9,
                  markersize=one.get("size", 4), markerfacecolor=one["colour"] if status(row) == "captured" else "white", zorder=4)


def dashes(line):
    return line if isinstance(line, str) else (line[0], tuple(line[1]))


def bars(axes, panel, rows):
    """Horizontal stacked bars: one row of the CSV is a bar, one column a part of it."""
    for row in matching(rows, panel["where"]):
        place = panel["series"].index([row["sparsifier"], row["parameters"]])
        start = 0.0
        for part in panel["parts"]:
            length = number(row[part["column"]])
            if length > 0:
                axes.barh(place, length, left=start, height=0.78, color=part["colour"], hatch=part["hatch"], edgecolor="black", linewidth=0.3)
                start += length
        if math.isfinite(number(row["p05"])):
            axes.plot([number(row["p05"]), number(row["p95"])], [place, place], color="black", linewidth=0.8, marker="|", markersize=3.5)
        if [row["sparsifier"], row["parameters"]] == ["dense", "{}"]:
            axes.axvline(number(row["iteration"]), color="black", linewidth=0.9, linestyle=(0, (4, 1.5)), zorder=4)


def ranges(axes, panel, rows):
    """Where one is faster (bars over n) and break-even points (marks)."""
    for place, (sparsifier, parameters, colour) in enumerate(panel["series"]):
        axes.axhline(place, color="#CCCCCC", linewidth=0.5, zorder=1)
        for row in matching(rows, {**panel["where"], "sparsifier": sparsifier, "parameters": parameters}):
            if row["curve"] == "faster":
                axes.barh(place, number(row["workers_to"]) - number(row["workers"]), left=number(row["workers"]), height=0.62, color=colour)
            elif row["curve"] == "break_even":
                axes.plot([number(row["workers"])] * 2, [place - 0.45, place + 0.45], color="black", linewidth=1.3, zorder=4)


def cells(axes, panel, rows):
    """A map: a coloured cell with a text for every row of the CSV."""
    for row in matching(rows, panel["where"]):
        x, y = panel["columns"].index(float(row["workers"])), panel["lines"].index(row["line"])
        look = panel["looks"][panel["series"].index([row["sparsifier"], row["parameters"]])]
        axes.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=look["colour"], edgecolor="white", linewidth=0.8))
        axes.text(x, y, row["text"], ha="center", va="center", color=look["text"])
    for x, line in panel["edges"]:
        axes.axvline(x, color="white", linewidth=2.6)
        axes.axvline(x, color="black", linewidth=1.4, linestyle=dashes(line))


def strips(axes, panel, rows):
    """Pieces of rows: every row of the CSV is one."""
    for row in matching(rows, panel["where"]):
        look = panel["looks"][row["kind"]]
        length = number(row["to"]) - number(row["from"])
        if length > 0:
            narrow = length < panel["narrow"]
            axes.barh(number(row["place"]), length, left=number(row["from"]), height=number(row["height"]), color=look["colour"], hatch="" if narrow else look["hatch"],
                      edgecolor=look["colour"] if narrow else "black", linewidth=0.3)


def handle(one):
    if one["kind"] == "patch":
        return Patch(facecolor=one["colour"], hatch=one["hatch"], edgecolor="black", linewidth=0.4, label=one["label"])
    return Line2D([], [], color=one["colour"], marker=one["marker"], linestyle=dashes(one["line"]), label=one["label"], markersize=one["size"],
                  markerfacecolor=one["face"], markeredgecolor=one["edge"])


def draw():
    """The figure; needs nothing but the CSV file."""
    with open(os.path.splitext(os.path.abspath(__file__))[0] + ".csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    plt.rcdefaults()
    plt.rcParams.update({"font.family": SPEC["font"], "font.size": SPEC["text_pt"], "axes.labelsize": SPEC["label_pt"],
                         "axes.titlesize": SPEC["text_pt"], "axes.linewidth": 0.6, "lines.linewidth": 1.1, "pdf.fonttype": 42,
                         "svg.fonttype": "path", "hatch.linewidth": 0.5, "axes.axisbelow": True})
    figure = plt.figure(figsize=SPEC["size_in"])
    for panel in SPEC["panels"]:
        axes = figure.add_axes(panel["box"])
        if panel["kind"] == "curves":
            for one in SPEC["curves"]:
                curve(axes, panel, one, rows)
        else:
            {"bars": bars, "ranges": ranges, "cells": cells, "strips": strips}[panel["kind"]](axes, panel, rows)
        for low, high in panel["shades"]:
            axes.axvspan(low, high, facecolor="#EDEDED", edgecolor="none", zorder=0)
        axes.set(title=panel["title"], xlabel=panel["xlabel"], ylabel=panel["ylabel"])
        for axis, scale, limits, ticks, labels in ((axes.xaxis, panel["xscale"], panel["xlim"], panel["xticks"], panel["xticklabels"]),
                                                   (axes.yaxis, panel["yscale"], panel["ylim"], panel["yticks"], panel["yticklabels"])):
            set_scale, set_limits = (axes.set_xscale, axes.set_xlim) if axis is axes.xaxis else (axes.set_yscale, axes.set_ylim)
            set_scale(scale)
            set_limits(limits)
            axis.set_ticks(ticks, labels)
            axis.set_minor_locator(matplotlib.ticker.NullLocator())
    for legend in SPEC["legends"]:
        figure.legend(handles=[handle(one) for one in legend["handles"]], loc="upper center", ncol=legend["columns"], frameon=False,
                      bbox_to_anchor=(0.5, legend["top"]), borderaxespad=0, borderpad=0, columnspacing=1.1, handletextpad=0.5, handlelength=2.4,
                      labelspacing=0.35, fontsize=SPEC["text_pt"])
    for one in SPEC["texts"]:
        figure.text(one["x"], one["y"], one["text"], ha=one["ha"], va=one["va"], fontsize=one["size"])
    return figure


if __name__ == "__main__":
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.splitext(os.path.abspath(__file__))[0] + "-redrawn.pdf"
    draw().savefig(out, dpi=300)
    print(out)
