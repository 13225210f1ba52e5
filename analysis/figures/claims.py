"""The claims of an experiment: the source's number against ours, with the tolerance and the diagonal."""
import math

from matplotlib.lines import Line2D

from analysis import caption, claims, panels, standalone, style
from analysis.figures import Drawing, NotApplicable

COLUMNS = ("panel", "number", "claim", "source", "claimed", "ours", "low", "high", "outcome", "differs_because", "counts_origin", "runs")
# Colour, marker and name of an outcome: told apart without colours by the marker.
OUTCOMES = {"holds": (style.BLUE, "o", "inside the tolerance"), "reason": (style.ORANGE, "D", "outside, for a stated reason"), "differs": (style.VERMILLION, "X", "outside")}
HEIGHT_IN = 2.6


def kind(one):
    return "reason" if one.outcome == "differs" and one.differs_because else one.outcome


def draw(results, style_name):
    outcomes = claims.evaluate(results)
    if not outcomes:
        raise NotApplicable("an experiment with claims", "none")
    shown = [(number, one) for number, one in enumerate(outcomes, 1) if math.isfinite(one.point) and math.isfinite(one.value)]
    if not shown:
        raise NotApplicable("claims with an expected number and their runs", "bounds or runs that are not there")
    return [_draw(results, outcomes, shown, style_name)]


def _draw(results, outcomes, shown, style_name):
    logarithmic = all(v > 0 for _, one in shown for v in (one.point, one.value))
    values = [v for _, one in shown for v in (one.point, one.value, one.low, one.high)]
    if logarithmic:
        low, high = style.limits([v for v in values if v > 0], 1.3)
        least = min(min(one.point, one.value) for _, one in shown)
        low = max(low, least / 2)  # a tolerance down to nothing must not squeeze the points
    else:
        margin = 0.06 * (max(values) - min(values)) or 1.0
        low, high = min(values) - margin, max(values) + margin
    width = style.WIDTH_IN[style_name]
    kinds = [k for k in OUTCOMES if any(kind(one) == k for _, one in shown)]
    handles = [Line2D([], [], linestyle="none", marker=OUTCOMES[k][1], color=OUTCOMES[k][0], label=OUTCOMES[k][2]) for k in kinds]
    notes = [Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (6, 2)), label="ours = the source's"),
             Line2D([], [], color=style.GREY, linewidth=2.2, alpha=0.6, label="tolerance")]
    tick_width = style.tick_width(low, high) if logarithmic else max(style.text_width("0.00"), style.text_width(style.tick_label(round(high))))
    side = 0.1 + style.LABEL_PT / 72 + 0.09 + tick_width + 0.06
    wide = style.wide(style_name)
    panel_width = HEIGHT_IN if wide else width - side - 0.12
    # In two columns the claims stand beside the panel by their numbers; in one the caption and the CSV have them.
    sheet = style.Sheet(style_name, 0.06 + HEIGHT_IN + 0.41, [handles, notes])
    axes = sheet.axes(side, 0.06, panel_width, HEIGHT_IN)
    axes.set(xlim=(low, high), ylim=(low, high))
    if logarithmic:
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        style.log_axis(axes.xaxis, low, high)
        style.log_axis(axes.yaxis, low, high)
        panels.thin(axes.xaxis, low, high, panel_width)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(style.ticker.MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
            axis.set_major_formatter(style.ticker.FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.plot([low, high], [low, high], color="black", linewidth=0.9, linestyle=(0, (6, 2)), zorder=2)
    table, placed = [], []
    for number, one in shown:
        colour, marker, _ = OUTCOMES[kind(one)]
        axes.plot([one.point] * 2, [max(one.low, low), min(one.high, high)], color=style.GREY, linewidth=2.2, alpha=0.6, solid_capstyle="butt", zorder=2.5)
        axes.plot([one.point], [one.value], linestyle="none", marker=marker, color=colour, markersize=5, markeredgecolor="black", markeredgewidth=0.4, zorder=4)
        _number(axes, number, one, placed, panel_width, (low, high), logarithmic)
        table.append({"panel": "claims", "number": number, "claim": one.claim, "source": one.source, "claimed": one.point, "ours": one.value, "low": one.low, "high": one.high,
                      "outcome": kind(one), "differs_because": one.differs_because or None, "runs": " ".join(one.runs)})
    table += [{"panel": "claims", "claim": "ours = the source's", "claimed": v, "ours": v, "outcome": "diagonal"} for v in (low, high)]
    axes.set_xlabel("claimed by the source", labelpad=2)
    axes.set_ylabel("ours")
    axes.yaxis.set_label_coords(-(tick_width + 0.15) / panel_width, 0.5)
    if wide:
        _list(sheet, shown, side + panel_width + 0.2, width)
    curves = [standalone.curve({"outcome": "diagonal"}, colour="black", line=(0, (6, 2)))]
    curves += [dict(standalone.curve({"outcome": k}, colour=OUTCOMES[k][0], line="none", marker=OUTCOMES[k][1]), size=5, bars=True) for k in kinds]
    recipe = {"panels": [standalone.panel(axes, {"panel": "claims"}, x="claimed", y="ours", low="low", high="high")], "curves": curves, "legends": sheet.legends}
    return Drawing("claims", sheet.figure, COLUMNS, table, _caption(results, outcomes, shown), recipe)


def _number(axes, number, one, placed, panel_width, limits, logarithmic):
    """The claim's number beside its mark, where no other number or mark is."""
    low, high = limits

    def inches(x, y):
        share = (lambda v: math.log(v / low) / math.log(high / low)) if logarithmic else (lambda v: (v - low) / (high - low))
        return share(x) * panel_width, share(y) * HEIGHT_IN

    x, y = inches(one.point, one.value)
    text, tall = str(number), style.TEXT_PT / 72
    across = style.text_width(text)
    choices = [(x + dx * (0.06 + across / 2), y + dy * (0.05 + tall / 2)) for reach in (1, 1.7, 2.6) for dx, dy in
               ((reach, 0), (-reach, 0), (0, reach), (0, -reach), (reach, reach), (-reach, reach), (reach, -reach), (-reach, -reach))]
    inside = [c for c in choices if across / 2 < c[0] < panel_width - across / 2 and tall / 2 < c[1] < HEIGHT_IN - tall / 2] or choices[:1]
    free = [c for c in inside if all(abs(c[0] - px) > (across + pw) / 2 + 0.02 or abs(c[1] - py) > (tall + ph) / 2 + 0.01 for px, py, pw, ph in placed)]
    at = (free or inside)[0]
    placed.append((x, y, 0.07, 0.07))
    placed.append((*at, across, tall))
    axes.text(at[0] / panel_width, at[1] / HEIGHT_IN, text, transform=axes.transAxes, ha="center", va="center", fontsize=style.TEXT_PT, zorder=5,
              bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.2})


def _list(sheet, shown, left, width):
    """The claims by their numbers, cut to the lines and the width that there are."""
    line = 1.35 * style.TEXT_PT / 72
    lines = int((HEIGHT_IN + 0.3) / line)
    room = width - left - 0.08
    texts = [f"{number}  {style.plain(one.claim)}" for number, one in shown]
    if len(texts) > lines:
        texts = texts[:lines - 1] + [f"and {len(shown) - lines + 1} more in the CSV"]
    for place, text in enumerate(texts):
        if style.text_width(text) > room:
            while text and style.text_width(text + "…") > room:
                text = text[:-1]
            text = text.rstrip("\\ ") + "…"
        down = sheet.top + 0.06 + (place + 0.5) * line
        sheet.figure.text(left / width, 1 - down / sheet.height, text, ha="left", va="center", fontsize=style.TEXT_PT)


def _caption(results, outcomes, shown):
    ids = {run for _, one in shown for run in one.runs}
    rows = {row.run_id: row for row in results.rows if row.run_id in ids}.values()
    counts = sorted({{"captured": "captured", "projected": "projected", "unvalidated": "projected beyond the validated range"}[row.status] for row in rows})
    kernels = sorted({row.kernel_times_origin for row in rows if row.kernel_times_origin})
    bounds = sum(not math.isfinite(one.point) for one in outcomes)
    missing = sum(one.outcome == "not run" for one in outcomes)
    return caption.join(
        "Numbers that the experiment's sources give against those of these results; bars: the tolerance of each claim around the source's number, dashed: both are the same.",
        " ".join(f"{number}: {one.claim} ({one.source}): claimed {one.expected}, ours {one.value:.4g}" + (f", differs: {one.differs_because}" if one.outcome == "differs" and one.differs_because else "")
                 + ("" if one.claim.endswith(".") and not one.differs_because else ".") for number, one in shown),
        (f"Counts of the runs behind them: {caption.listing(counts)}. " if counts else "") + (f"Selection kernel times: {caption.listing(kernels)}. " if kernels else "")
        + "Communication times are modelled.",
        (f"{bounds} claim{'s' if bounds > 1 else ''} with a bound only {'are' if bounds > 1 else 'is'} not drawn. " if bounds else "")
        + (f"{missing} of all claims {'were' if missing > 1 else 'was'} not run." if missing else ""))
