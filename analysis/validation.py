#!/usr/bin/env python3
"""Draws measured against simulated times of a folder's validation.csv (sparscale validate): validation.pdf, .svg and .png beside it. Where there
are several series of repeated measurements (mpi), simulated over measured, as the differences are small.
Exit status: 0 done, 1 the figure could not be made, 2 wrong input or usage."""
import csv
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import plot  # noqa: E402

# Of every use of a row: label, filled marker.
USES = {"compared": ("compared", True), "middle": ("middle sizes, measured curve not monotonic", False),
        "calibration": ("the platform's numbers come from it", False), "not_network": ("not the time of a collective", False)}
# Of every series of measurements: label, filled marker, its size (docs/validation.md).
SERIES = {"given": ("first series, 3 repeats", False, 3.5), "undisturbed": ("undisturbed", True, 3.5), "equal_windows": ("equal TCP windows", True, 2)}
OP_MARKERS = ("o", "s", "^", "D", "v", "P")


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        rows = [dict(row, measured_s=float(row["measured_s"]), simulated_s=float(row["simulated_s"])) for row in csv.DictReader(file)]
    for row in rows:
        row["spread_s"] = [float(row[key]) for key in ("measured_min_s", "measured_max_s") if row.get(key)]
    return rows


def draw(rows):
    from matplotlib.lines import Line2D

    from analysis import style

    style.reset()
    groups = list(dict.fromkeys(row["platform"] if row["platform"] != "shaped-links" else row["algorithm"] for row in rows))
    colours = (style.BLUE, style.VERMILLION, style.GREEN, style.ORANGE, style.PURPLE, style.SKY, style.BLACK, style.GREY, style.YELLOW)
    colour = {group: colours[i % len(colours)] for i, group in enumerate(groups)}
    operations = list(dict.fromkeys(row["op"] for row in rows))
    marker = {operation: OP_MARKERS[i % len(OP_MARKERS)] for i, operation in enumerate(operations)}
    uses = [use for use in USES if any(row["use"] == use for row in rows)]
    series = list(dict.fromkeys(row["series"] for row in rows if row.get("series")))
    kinds = {one: SERIES.get(one, (one, True, 3.5)) for one in series}
    close = 0.05 if series else 0.25
    handles = [[Line2D([], [], linestyle="none", marker="o", color=colour[group], label=style.plain(group)) for group in groups],
               [Line2D([], [], linestyle="none", marker=marker[one], color="black", label=one) for one in operations],
               [Line2D([], [], linestyle="none", marker="o", color="black", markerfacecolor="black" if USES[use][1] else "white",
                       label=USES[use][0]) for use in uses] if not series else
               [Line2D([], [], linestyle="none", marker="o", color="black", markerfacecolor="black" if kinds[one][1] else "white",
                       markersize=kinds[one][2] * 1.5, label=style.plain(kinds[one][0])) for one in series] +
               [Line2D([], [], color="black", linewidth=0.5, label="fastest to slowest repeat")],
               [Line2D([], [], color="black", linewidth=0.7, label="equal"),
                Line2D([], [], color="black", linewidth=0.5, linestyle=(0, (4, 2)), label=f"{100 * close:.0f} % apart")]]
    sheet = style.Sheet("single", 3.0, handles)
    axes = sheet.axes(0.55, 0.1, 2.65, 2.4)
    times = [row[key] * 1e3 for row in rows for key in ("measured_s", "simulated_s")]
    low, high = style.limits(times, 1.5)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    if not series:
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    for factor, look in ((1, {"linewidth": 0.7}), (1 - close, {"linewidth": 0.5, "linestyle": (0, (4, 2))}),
                         (1 + close, {"linewidth": 0.5, "linestyle": (0, (4, 2))})):
        axes.plot([low, high], [factor, factor] if series else [low * factor, high * factor], color="black", **look)
    for row in rows:
        group = row["platform"] if row["platform"] != "shaped-links" else row["algorithm"]
        filled = USES[row["use"]][1] and (not series or kinds[row["series"]][1])
        if series:
            axes.plot([row["measured_s"] * 1e3] * 2, [row["simulated_s"] / one for one in row["spread_s"]], color=colour[group], linewidth=0.5)
        axes.plot(row["measured_s"] * 1e3, row["simulated_s"] / row["measured_s"] if series else row["simulated_s"] * 1e3, linestyle="none",
                  marker=marker[row["op"]], color=colour[group], markerfacecolor=colour[group] if filled else "white",
                  markersize=kinds[row["series"]][2] if series else 3.5)
    axes.set_xlabel("measured [ms]")
    axes.set_ylabel("simulated / measured" if series else "simulated [ms]")
    return sheet.figure


def main(arguments):
    if len(arguments) != 1:
        print("sparscale: expected a folder with validation.csv", file=sys.stderr)
        return 2
    path = os.path.join(arguments[0], "validation.csv")
    try:
        rows = read(path)
        if not rows:
            raise ValueError("no rows")
    except (OSError, ValueError, KeyError) as error:
        print(f"sparscale: {path}: expected the rows of a validation, found {error}", file=sys.stderr)
        return 2
    try:
        plot.need_matplotlib()
        from analysis import style

        figure = draw(rows)
        for one in plot.FORMATS:
            plot.replace(os.path.join(arguments[0], f"validation.{one}"), lambda name: style.save(figure, name, one))
            print(os.path.join(arguments[0], f"validation.{one}"))
    except (plot.Failure, OSError) as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
