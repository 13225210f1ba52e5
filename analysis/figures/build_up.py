"""Build-up U/k and actual density U/N against n; one column of panels (or, with one density, one row) per density."""
import math

from matplotlib.lines import Line2D

from analysis import caption, files, standalone, style
from analysis.figures import Drawing
from analysis.results import slices, varying

COLUMNS = ("panel", "curve", "sparsifier", "parameters", "density_wanted", "workers", "value", "p05", "p95", "counts_origin", "validated",
           "iterations", "seeds", "estimate_low", "estimate_high")
BROWN = "#7A4B00"
TARGET = Line2D([], [], color=BROWN, linewidth=0.9, label="density wanted, k/N")
BREAK_EVEN_LINE = (0, (5, 1.5, 1, 1.5))
BREAK_EVEN = Line2D([], [], color=BROWN, linewidth=0.9, linestyle=BREAK_EVEN_LINE, label="bandwidth break-even, k n + U = N")
BEST = Line2D([], [], color="none", marker="o", markersize=4.5, markerfacecolor=BROWN, markeredgecolor="white",
              label="break-even at best (U = k), k/N = 1/(n + 1)")
CONSENSUS = Line2D([], [], color="black", marker="*", linewidth=0.9, markersize=5, markeredgewidth=0.5, label="Top-k: consensus, range of estimates")
IDEAL = Line2D([], [], color="black", linewidth=0.7, linestyle=(0, (6, 2)), label="no build-up, U = k")

PANELS = (("build_up", "build-up U/k"), ("density", "actual density U/N"))
VALUES = {"build_up": ("build_up_mean", "build_up_p05", "build_up_p95"),
          "density": ("actual_density_mean", "actual_density_p05", "actual_density_p95")}
SAMPLES = 400  # points of a reference curve


def _estimates(one):
    """Consensus and range of the estimates of the points that have them, by series: (n, consensus, low, high)."""
    found = {}
    for series, points in one.sparse().items():
        numbers = [(p.workers, p.mean("build_up_consensus_mean"), p.mean("build_up_estimate_low"), p.mean("build_up_estimate_high")) for p in points]
        numbers = [number for number in numbers if all(map(math.isfinite, number))]
        if numbers:
            found[series] = numbers
    return found


def _range(page, panel):
    mean, p05, p95 = VALUES[panel]
    values = []
    if panel == "build_up":
        values += [end for one in page for numbers in _estimates(one).values() for _, _, low, high in numbers for end in (low, high)]
    for one in page:
        for points in one.sparse().values():
            for point in points:
                values += [point.mean(mean), point.low(p05), point.high(p95)]
        values.append(1.0 if panel == "build_up" else one.facets["density"])
    low, high = style.limits(values, 1.25)
    # Outliers of vanishing size (an iteration that selected nothing) must not squeeze everything else.
    means = [point.mean(mean) for one in page for points in one.sparse().values() for point in points]
    lowest = style.limits(means + [1.0 if panel == "build_up" else one.facets["density"] for one in page], 4)
    return max(low, lowest[0]), high


def _reference(axes, one, low, high):
    """Density wanted, and the U/N at which 8-byte indices all-gathered and 4-byte values all-reduced cost what dense fp32 costs.

    Not the curve 1/(n + 1): that bounds k/N, and on an axis of U/N a sparsifier can lie above it and still send less than dense. It shows as
    the point where the curve meets k/N."""
    density, (left, right) = one.facets["density"], axes.get_xlim()
    axes.axhline(density, color=BROWN, linewidth=0.9, zorder=2)
    xs = [left * (right / left) ** (i / SAMPLES) for i in range(SAMPLES + 1)]
    fine = [x for x in xs if 1 - density * x > 0]
    end = 1 / density
    if left < end <= right:  # the curve falls to nothing at n = N/k: follow it down to the edge of the panel
        fine += [end - (end - fine[-1]) * 2.0 ** -i for i in range(1, 40)]
    axes.plot(fine, [1 - density * x for x in fine], color=BROWN, linewidth=0.9, linestyle=BREAK_EVEN_LINE, zorder=2)
    if _meets(one):
        axes.plot([end - 1], [density], marker="o", markersize=4.5, markerfacecolor=BROWN, markeredgecolor="white", markeredgewidth=0.6, zorder=6)
    axes.set_ylim(low, high)


def _meets(one):
    """Whether the best case U = k stops to pay inside the n that were run."""
    workers = one.workers(dense=False)
    return min(workers) <= 1 / one.facets["density"] - 1 <= max(workers)


def _reaches(page):
    """Whether the bandwidth break-even comes down into a panel's range of U/N."""
    _, high = _range(page, "density")
    return any(1 - one.facets["density"] * max(one.workers(dense=False)) < high for one in page)


def _table(page):
    rows = []
    for one in page:
        density = one.facets["density"]
        for panel, _ in PANELS:
            mean, p05, p95 = VALUES[panel]
            for series in style.order(one.sparse()):
                for point in one.curves[series]:
                    rows.append({"panel": panel, "curve": "sparsifier", "sparsifier": series[0], "parameters": series[1], "density_wanted": density,
                                 "workers": point.workers, "value": point.mean(mean), "p05": point.low(p05), "p95": point.high(p95),
                                 "counts_origin": point.counts_origin, "validated": point.validated, "iterations": point.iterations,
                                 "seeds": len(point.rows)})
            if panel == "build_up":
                for series, numbers in _estimates(one).items():
                    rows += [{"panel": panel, "curve": "consensus", "sparsifier": series[0], "parameters": series[1], "density_wanted": density, "workers": n,
                              "value": consensus, "estimate_low": low, "estimate_high": high} for n, consensus, low, high in numbers]
            for n in one.workers(dense=False):
                lines = [("no_build_up", 1.0)] if panel == "build_up" else [
                    ("density_wanted", density), ("bandwidth_break_even", 1 - density * n if density * n < 1 else None)]
                rows += [{"panel": panel, "curve": name, "density_wanted": density, "workers": n, "value": value} for name, value in lines]
        if _meets(one):
            rows.append({"panel": "density", "curve": "break_even_at_best", "density_wanted": density, "workers": 1 / density - 1, "value": density})
    return rows


def _missing(page, looks):
    names = []
    for one in page:
        for series, points in one.sparse().items():
            for panel, label in PANELS:
                if not any(point.mean(VALUES[panel][0]) > 0 for point in points):
                    names.append(f"{looks[series].label}, {label}, density {caption.number(one.facets['density'])}")
    return names


def _caption(page, looks):
    meetings = ", ".join(f"n = {caption.number(1 / one.facets['density'] - 1)} at density {caption.number(one.facets['density'])}" for one in page)
    return caption.join(
        "Gradient build-up U/k and actual density U/N against the number of workers n. k = trunc(density x N) gradients are wanted, U is the "
        "size of the union of the indices that the n workers select, N the number of gradients.",
        caption.facets(page, dense=False), caption.series(page, dense=False),
        caption.counts(page),
        caption.iterations(page, "bands"),
        "Captured: solid lines, filled markers. Projected: dashed lines, hollow markers. Beyond the validated range: dotted lines, hollow "
        "markers, shaded ground. A piece between two points is drawn as the less certain of them.",
        "Stars: build-up of projected local Top-k by the consensus of three estimates (the projection, the projection calibrated at the captured "
        "workers, the estimate from their counts alone); the bar spans the three and is the uncertainty of the projection."
        if any(_estimates(one) for one in page) else "",
        "Bandwidth break-even (assumed exchange): every worker all-gathers k indices of 8 bytes and all-reduces U values of 4 bytes, which is as "
        "much as dense fp32 sends when k n + U = N; above that curve a sparsifier whose workers select k each sends more than dense fp32. In the "
        f"best case, U = k, it pays only while k/N is below 1/(n + 1), that is up to {meetings}. Sparsifiers whose workers share k between them "
        "and other exchanges are not bound by it; the speed-up figure has their break-even points."
        + ("" if _reaches(page) else " Here the curve lies above the panel."),
        caption.missing(_missing(page, looks)))


def draw(results, style_name):
    found = [one for one in slices(results, "selection", ("trace", "density")) if one.sparse()]
    found.sort(key=lambda one: -one.facets["density"])
    across = varying(found) if found else []
    drawings = []
    for page, whole in files.pages(found, "density", 3 if style.wide(style_name) else 1):
        looks = style.fit(style.looks({series for one in page for series in one.sparse()}), style.WIDTH_IN[style_name] - 0.6)
        names = [key for key in across if key != "density" or not whole]
        facets = dict(page[0].facets, density=[one.facets["density"] for one in page])
        drawings.append(_draw(page, looks, style_name, files.name("build_up", names, facets)))
    return drawings


def _draw(page, looks, style_name, name):
    statuses = {row.status for one in page for row in one.rows(dense=False)}
    lines = [IDEAL, TARGET] + ([BREAK_EVEN] if _reaches(page) else []) + ([BEST] if any(_meets(one) for one in page) else [])
    lines += [CONSENSUS] if any(_estimates(one) for one in page) else []
    blocks = [[style.series_handle(look) for look in looks.values()], style.status_handles(statuses, page[0].facets["captured_workers"]), lines]
    tick_width = max(style.tick_width(*_range(page, panel)) for panel, _ in PANELS)
    left, right, bottom, gap = tick_width + 0.31, 0.08, 0.4, tick_width + 0.34
    width = style.WIDTH_IN[style_name]
    side_by_side = len(page) == 1 and style.wide(style_name)
    columns = 2 if side_by_side else len(page)
    across_gap = gap if side_by_side else 0.14
    panel_width = (width - left - right - across_gap * (columns - 1)) / columns
    panel_height = 2.2 if side_by_side else 1.75
    title = 0.2 if len(page) > 1 else 0.02
    down = 1 if side_by_side else 2
    sheet = style.Sheet(style_name, title + down * panel_height + (down - 1) * 0.12 + bottom, blocks)
    recipe = []
    for row, (panel, label) in enumerate(PANELS):
        low, high = _range(page, panel)
        for column, one in enumerate(page):
            lowest_row = side_by_side or row == 1
            first_column = side_by_side or column == 0
            place = (row if side_by_side else column, 0 if side_by_side else row)
            axes = sheet.axes(left + place[0] * (panel_width + across_gap), title + place[1] * (panel_height + 0.12), panel_width, panel_height)
            style.workers_axis(axes, one.workers(dense=False), panel_width, labelled=lowest_row)
            style.shade_beyond(axes, one.validated_up_to())
            axes.set_yscale("log")
            axes.set_ylim(low, high)
            style.log_axis(axes.yaxis, low, high)
            if panel == "build_up":
                axes.axhline(1, color="black", linewidth=0.7, linestyle=(0, (6, 2)), zorder=2)
            else:
                _reference(axes, one, low, high)
            mean, p05, p95 = VALUES[panel]
            for series, look in looks.items():
                points = one.curves.get(series, ())
                style.curve(axes, [(p.workers, p.mean(mean) if p.mean(mean) > 0 else math.nan, p.low(p05), p.high(p95), p.status) for p in points], look)
            for numbers in _estimates(one).values() if panel == "build_up" else ():
                axes.vlines([n for n, _, _, _ in numbers], [low for _, _, low, _ in numbers], [high for _, _, _, high in numbers], color="black", linewidth=0.9, zorder=4)
                axes.plot([n for n, _, _, _ in numbers], [value for _, value, _, _ in numbers], linestyle="none", marker="*", color="black", markersize=5, markeredgewidth=0.5, zorder=5)
            recipe.append(standalone.panel(axes, {"panel": panel, "density_wanted": one.facets["density"]}, x="workers", y="value", low="p05", high="p95"))
            if lowest_row:
                axes.set_xlabel("workers n")
            if first_column:
                axes.set_ylabel(label)
                axes.yaxis.set_label_coords(-(tick_width + 0.13) / panel_width, 0.5)
            else:
                axes.tick_params(labelleft=False)
            if len(page) > 1 and row == 0:
                axes.set_title(f"density {caption.number(one.facets['density'])}", pad=3)
    curves = standalone.series_curves(looks, curve="sparsifier") + [
        standalone.curve({"curve": "no_build_up"}, colour="black", line=(0, (6, 2))), standalone.curve({"curve": "density_wanted"}, colour=BROWN),
        standalone.curve({"curve": "bandwidth_break_even"}, colour=BROWN, line=BREAK_EVEN_LINE),
        standalone.curve({"curve": "consensus"}, colour="black", line="none", marker="*"),
        standalone.curve({"curve": "break_even_at_best"}, colour=BROWN, line="none", marker="o")]
    return Drawing(name, sheet.figure, COLUMNS, _table(page), _caption(page, style.looks(looks)),
                   {"panels": recipe, "curves": curves, "legends": sheet.legends})
