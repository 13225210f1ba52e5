#!/usr/bin/env python3
"""Figures about traces, from the JSON that the program writes: `trace_figures.py info REPORT.json FIGURE` draws the layers of a trace,
`trace_figures.py validity FOLDER` the errors of expansion against captured workers. Exit status: 0 done, 1 they could not be made."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import style  # noqa: E402


def save(figure, file):
    """Bytes that depend on what is drawn only."""
    extension = os.path.splitext(file)[1].lower()
    metadata = {".pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}, ".svg": {"Date": None, "Creator": None},
                ".png": {"Software": None}}
    if extension not in metadata:
        raise ValueError(f"{file}: expected a name that ends in .pdf, .svg or .png")
    style.matplotlib.rcParams["svg.hashsalt"] = "sparscale"
    style.matplotlib.rcParams["pdf.fonttype"] = 42
    temporary = f"{file}.tmp{extension}"
    figure.savefig(temporary, dpi=style.PNG_DPI, metadata=metadata[extension], bbox_inches="tight")
    os.replace(temporary, file)


def new_figure(width, height, columns):
    figure = style.Figure(figsize=(width, height), layout="constrained")
    style.FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.tick_params(labelsize=style.TEXT_PT)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_info(report, file, most=40):
    layers = report["layers"]
    shown = sorted(sorted(range(len(layers)), key=lambda i: -layers[i]["energy_share"])[:most])
    names = [layers[i]["name"] for i in shown]
    rows = range(len(shown))
    figure, axes = new_figure(7.0, 1.0 + 0.13 * len(shown), 3)
    axes[0].barh([row - 0.2 for row in rows], [100 * layers[i]["parameter_share"] for i in shown], 0.4, color=style.GREY, label="parameters")
    axes[0].barh([row + 0.2 for row in rows], [100 * layers[i]["energy_share"] for i in shown], 0.4, color=style.BLUE, label="energy")
    axes[0].set_xlabel("share (%)", fontsize=style.LABEL_PT)
    axes[0].legend(fontsize=style.TEXT_PT, frameon=False)
    points = [(layers[i]["tail_index"], row) for row, i in zip(rows, shown) if layers[i]["tail_index"] is not None]
    axes[1].plot([x for x, _ in points], [y for _, y in points], "o", color=style.VERMILLION, markersize=3)
    axes[1].set_xlabel("tail index (Hill, top 1 %)", fontsize=style.LABEL_PT)
    axes[2].barh(rows, [100 * layers[i]["zero_share"] for i in shown], 0.6, color=style.ORANGE)
    axes[2].set_xlabel("exact zeros (%)", fontsize=style.LABEL_PT)
    for axis in axes:
        axis.set_ylim(len(shown) - 0.4, -0.6)
        axis.set_yticks(list(rows), names if axis is axes[0] else [])
    title = f"{report['name']}: {report['gradients']:,} gradients, {report['workers']} workers, {report['iterations']} iterations"
    if len(shown) < len(layers):
        title += f"; the {len(shown)} of {len(layers)} layers with the most energy"
    figure.suptitle(title, fontsize=style.LABEL_PT)
    save(figure, file)


LIGHT = "#C9C9C9"
METHODS = {"boot": (style.ORANGE, "v"), "hybrid": (style.GREEN, "o"), "shift": (style.PURPLE, "s"), "npmle": (style.BLUE, "D"),
           "logquad": (style.GREY, "X"), "boot+cal": (style.ORANGE, "1"), "hybrid+cal": (style.GREEN, "2"), "shift+cal": (style.PURPLE, "3"), "consensus": (style.BLACK, "*"), "auto": (style.VERMILLION, "P"),
           "build_up_before": (style.GREY, "o"), "build_up_after_0": (style.VERMILLION, "v"), "build_up_after_10": (style.ORANGE, "s"),
           "build_up_after_20": (style.GREEN, "D"), "build_up_after_40": (style.BLUE, "^")}


def draw_validity(folder):
    with open(os.path.join(folder, "expansion-validity.json"), encoding="utf-8") as file:
        cases = [case for case in json.load(file)["cases"] if case["sparsifier"] == "topk"]
    traces = list(dict.fromkeys(case["trace"] for case in cases))
    figure, axes = new_figure(7.0, 2.6, len(traces))
    # Of a drop of the learning rate: one method, several times.
    series = "method" if all(case["metric"] == "build_up" for case in cases) else "metric"
    methods = list(dict.fromkeys(case[series] for case in cases))
    for axis, trace in zip(axes, traces):
        labels = list(dict.fromkeys((case["density"], case["captured"], case["workers"]) for case in cases if case["trace"] == trace))
        for number, method in enumerate(methods):
            colour, marker = METHODS[method]
            own = [case for case in cases if case["trace"] == trace and case[series] == method]
            axis.plot([labels.index((c["density"], c["captured"], c["workers"])) + 0.07 * (number - len(methods) / 2) for c in own],
                      [c["error_percent"] for c in own], marker, color=colour, markersize=3.5, zorder=3, label=method if axis is axes[0] else None)
        # What the choice of the captured workers is worth; and what another training would give.
        for key, width, colour in (("sampling_percent", 5.0, LIGHT), ("truth_scatter_percent", 1.0, style.GREY)):
            spans = {}
            for c in cases:
                if c["trace"] == trace and c[key] is not None:
                    place = labels.index((c["density"], c["captured"], c["workers"]))
                    spans[place] = max(spans.get(place, 0.0), c[key])
            axis.vlines(list(spans), [-span for span in spans.values()], list(spans.values()), color=colour, linewidth=width, zorder=1)
        axis.axhspan(-5, 5, color=style.SHADE, zorder=0)
        axis.axhline(0, color=style.BLACK, linewidth=0.6)
        axis.set_ylim(-25, 25)
        axis.set_xticks(range(len(labels)), [f"{d:g}: {w} to {n}" for d, w, n in labels], rotation=90)
        axis.set_title(trace, fontsize=style.LABEL_PT)
    axes[0].set_ylabel("error of the build-up (%)", fontsize=style.LABEL_PT)
    if any(case["sampling_percent"] is not None for case in cases):
        axes[-1].vlines([], [], [], color=LIGHT, linewidth=5.0, label="choice of captured workers (s.d.)")
        axes[-1].vlines([], [], [], color=style.GREY, linewidth=1.0, label="another training (s.d.)")
    figure.legend(fontsize=style.TEXT_PT, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=min(6, len(methods) + 2))
    for extension in ("pdf", "svg", "png"):
        save(figure, os.path.join(folder, "expansion-validity." + extension))


def main(arguments):
    try:
        if arguments[:1] == ["info"] and len(arguments) == 3:
            with open(arguments[1], encoding="utf-8") as file:
                draw_info(json.load(file), arguments[2])
        elif arguments[:1] == ["validity"] and len(arguments) == 2:
            draw_validity(arguments[1])
        else:
            print("usage: trace_figures.py info REPORT.json FIGURE | validity FOLDER", file=sys.stderr)
            return 2
    except (OSError, ValueError) as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
