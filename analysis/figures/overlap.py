"""What communication costs in every timeline: one iteration as strips of computing and communicating, and at every n how much of the
communication is hidden behind computing. Two figures of panels in one: strips at the largest n on top, bars for every n below."""
import json
import math
import re

from matplotlib.patches import Patch

from analysis import caption, files, standalone, style
from analysis.figures import Drawing, NotApplicable
from analysis.figures.breakdown import unit
from analysis.results import InputError, shorten, slices

COLUMNS = ("panel", "timeline", "workers", "place", "height", "lane", "kind", "from", "to", "unit", "share", "run_id", "counts_origin", "validated",
           "compute_times_origin", "network", "iterations", "seeds")
# Kind: label, colour, hatch. Told apart without colours by lightness and hatch.
KINDS = {"forward": ("forward", "#D0D0D0", ""), "backward": ("backward", "#9A9A9A", ""), "selection": ("selection", style.ORANGE, "\\\\\\\\"),
         "other": ("other computing", style.YELLOW, "xxxx"), "hidden": ("communication, hidden", style.SKY, "////"),
         "exposed": ("communication, exposed", style.VERMILLION, ""), "alone": ("computing alone", "white", "")}
LANE_IN, ROW_GAP_IN, BAR_IN = 0.085, 0.07, 0.14
LABEL_IN = 1.5
# An iteration longer than so many times the shortest is cut off at the panel's edge, where its length is written: it would squeeze the others.
CUT = 3.0
EDGE = 1.03
NARROW = 0.006


def draw(results, style_name):
    groups = {}
    for one in slices(results, "time", ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")):
        facets = {k: v for k, v in one.facets.items() if k not in ("timeline", "timeline_options", "network")}
        groups.setdefault(tuple(sorted(dict(facets, platform=platform_of(one)).items())), []).append(one)
    chosen = []
    for group in groups.values():
        for series in dict.fromkeys(series for one in group for series in one.curves):
            modes = [one for one in group if series in one.curves]
            if len(modes) > 1 and any(p.mean("overlapped_time_s") > 0 for one in modes for p in one.curves[series]):
                chosen.append((series, platform_of(modes[0]), list(zip(labels_of(modes), modes))))
    if not chosen:
        raise NotApplicable("runs of one exchange in several timelines, one of which overlaps", "none")
    if not results.has_series():
        raise NotApplicable("the runs' activity in runs/", "no such directory")
    names = [series for series, _, _ in chosen]
    base = [dict(modes[0][1].facets, platform=platform, exchange=series[0] if len({s for s in names if s[0] == series[0]}) == 1 else " ".join(series)) for series, platform, modes in chosen]
    across = [key for key in dict.fromkeys(k for one in base for k in one) if key not in ("timeline", "timeline_options") and len({str(one.get(key)) for one in base}) > 1]
    return [_draw(results, series, platform, modes, style_name, files.name("overlap", across, facets)) for (series, platform, modes), facets in zip(chosen, base)]


def platform_of(one):
    """The platform's name without the timeline that stands behind it in brackets."""
    platform, timeline = one.facets["platform"], one.rows()[0].timeline
    # In the bracket: the timeline, its options or their checksum, and behind a comma what disturbs.
    found = re.fullmatch(r"(.*) \(" + re.escape(timeline) + r"(?: (?:\{[^{}]*\}|#[0-9a-f]+))?(?:, (disturbed .*))?\)", platform, re.S)
    if not found or timeline == "sequential":
        return platform
    return found.group(1) + (f" ({found.group(2)})" if found.group(2) else "")


def labels_of(modes):
    """The timelines' names, with the options that tell those of one name apart."""
    options = [_options(one) for one in modes]
    names = [one.rows()[0].timeline for one in modes]
    labels = []
    for name, own in zip(names, options):
        others = [other for other, theirs in zip(options, names) if theirs == name]
        telling = [key for key, value in own.items() if any(other.get(key) != value for other in others)]
        words = {"streams": "{} streams", "by_layer": "by {}"}
        labels.append(", ".join([name, *(words.get(key, key.replace("_", " ") + " = {}").format(own[key]) for key in telling)]))
    return labels


def _options(one):
    try:
        options = json.loads(one.rows()[0].timeline_options)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        row = one.rows()[0]
        raise InputError(row.run_id, "timeline_options", "a JSON object", shorten(row.timeline_options))
    return options


def cut(pieces, others):
    """Stretches of `pieces` (begin, end) by whether one of `others` is under way: list of (begin, end, met)."""
    result = []
    for begin, end in pieces:
        marks = sorted({begin, end, *(t for other in others for t in other if begin < t < end)})
        for a, b in zip(marks, marks[1:]):
            met = any(x < b and y > a for x, y in others)
            if result and result[-1][1] == a and result[-1][2] == met:
                result[-1] = (result[-1][0], b, met)
            else:
                result.append((a, b, met))
    return result


def _draw(results, series, platform, modes, style_name, name):
    wide = style.wide(style_name)
    width = style.WIDTH_IN[style_name]
    labels = [label for label, _ in modes]
    points = {(label, point.workers): point for label, one in modes for point in one.curves[series]}
    workers = sorted({n for _, n in points})
    largest = max(n for n in workers if all((label, n) in points for label in labels)) if any(all((label, n) in points for label in labels) for n in workers) else workers[-1]
    strips = {label: results.activity(points[label, largest].rows[0]) for label in labels if (label, largest) in points}
    if not any(strips.values()):
        raise NotApplicable("runs with their activity", "runs of an earlier version")
    strips = {label: strip for label, strip in strips.items() if strip}
    totals = [p.mean("iteration_time_s_mean") for p in points.values()]
    limit_s = max(total for total in totals if total <= CUT * min(totals))
    factor, unit_name = unit(limit_s)
    shown = {label: style.plain(label) for label in labels}
    room = min(LABEL_IN if wide else 1.3, max(style.text_width(text) for text in shown.values()))
    for label, text in shown.items():
        while style.text_width(text) > room + 1e-9:
            text = text.rstrip("… ")[:-1] + "…"
        shown[label] = text

    table = []
    common = {label: {"timeline": label, "unit": unit_name} for label in labels}

    # Strips: a row for every timeline, in it a lane that computes and one for every stream that communicates.
    lanes = {label: 1 + max(1, len({piece["stream"] for piece in strip["communicate"]})) for label, strip in strips.items()}
    tops, down = {}, 0.04
    for label in strips:
        tops[label] = down
        down += lanes[label] * LANE_IN + ROW_GAP_IN
    strip_height = down - ROW_GAP_IN + 0.04
    panel = f"one iteration, n = {largest}"
    for label, strip in strips.items():
        point = points[label, largest]
        cells = dict(common[label], panel=panel, workers=largest, height=LANE_IN, **_origins(point, point.rows[0].run_id))
        busy = [(piece["begin_s"], piece["end_s"]) for piece in strip["compute"]]
        for piece in strip["compute"]:
            table.append(dict(cells, place=tops[label] + LANE_IN / 2, lane="computes", kind=piece["kind"], **{"from": piece["begin_s"] * factor, "to": piece["end_s"] * factor}))
        for lane, stream in enumerate(sorted({piece["stream"] for piece in strip["communicate"]}), 1):
            calls = [(piece["begin_s"], piece["end_s"]) for piece in strip["communicate"] if piece["stream"] == stream]
            for begin, end, met in cut(calls, busy):
                table.append(dict(cells, place=tops[label] + (lane + 0.5) * LANE_IN, lane=f"communicates {lane}", kind="hidden" if met else "exposed",
                                  **{"from": begin * factor, "to": end * factor}))
    # Bars: computing alone, both at once, communicating alone; their lengths add up to the iteration.
    for label in labels:
        for n in workers:
            if (label, n) not in points:
                continue
            point = points[label, n]
            total, hidden, exposed = (point.mean(column) for column in ("iteration_time_s_mean", "overlapped_time_s", "exposed_exchange_time_s"))
            start = 0.0
            for kind, length in (("alone", max(0.0, total - hidden - exposed)), ("hidden", hidden), ("exposed", exposed)):
                table.append(dict(common[label], panel=f"n = {n}", workers=n, place=labels.index(label), height=0.78, kind=kind, share=length / total,
                                  **{"from": start * factor, "to": (start + length) * factor}, **_origins(point, " ".join(row.run_id for row in point.rows))))
                start += length

    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in table)]
    patches = {kind: Patch(facecolor=KINDS[kind][1], hatch=KINDS[kind][2], edgecolor="black", linewidth=0.4, label=KINDS[kind][0]) for kind in kinds}
    left, right, gap, title, axis = 0.1 + room + 0.04, 0.14, 0.16, 0.17, 0.2
    most = 4 if wide else 2
    columns = min(len(workers), most)
    rows = math.ceil(len(workers) / columns)
    bar_width = (width - left - right - gap * (columns - 1)) / columns
    bar_height = BAR_IN * len(labels) + 0.08
    step = title + bar_height + 0.06
    head = title + strip_height + axis + 0.1
    sheet = style.Sheet(style_name, head + rows * step + 0.36, [[patches[kind] for kind in kinds if kind in ("forward", "backward", "selection", "other", "alone")],
                                                               [patches[kind] for kind in kinds if kind in ("hidden", "exposed")]])
    recipe, looks = [], {kind: {"colour": KINDS[kind][1], "hatch": KINDS[kind][2]} for kind in kinds}
    axes = sheet.axes(left, title, width - left - right, strip_height)
    limit, cut_off = limit_s * factor, max(totals) > limit_s
    _bars(axes, [row for row in table if row["panel"] == panel], limit)
    axes.set_ylim(strip_height, 0)
    axes.set_yticks([tops[label] + lanes[label] * LANE_IN / 2 for label in strips], [shown[label] for label in strips])
    _frame(axes, limit, panel, width - left - right)
    for label, strip in strips.items():
        _mark_cut(axes, limit, tops[label] + lanes[label] * LANE_IN / 2, strip["end_s"] * factor)
    recipe.append(standalone.panel(axes, {"panel": panel}, "strips", looks=looks, narrow=NARROW * limit))
    for number, n in enumerate(workers):
        row, column = divmod(number, columns)
        axes = sheet.axes(left + column * (bar_width + gap), head + row * step + title, bar_width, bar_height)
        _bars(axes, [one for one in table if one["panel"] == f"n = {n}"], limit)
        axes.set_ylim(len(labels) - 0.5 + 0.2, -0.5 - 0.2)
        axes.set_yticks(range(len(labels)), [shown[label] for label in labels] if column == 0 else [""] * len(labels))
        _frame(axes, limit, f"n = {n}", bar_width)
        for label in labels:
            if (label, n) in points:
                _mark_cut(axes, limit, labels.index(label), points[label, n].mean("iteration_time_s_mean") * factor)
        if number + columns < len(workers):
            axes.tick_params(axis="x", labelbottom=False)
        recipe.append(standalone.panel(axes, {"panel": f"n = {n}"}, "strips", looks=looks, narrow=NARROW * limit))
    sheet.figure.text((left + (width - left - right) / 2) / width, 0.05 / sheet.height, f"time ({unit_name})", ha="center", va="bottom", fontsize=style.LABEL_PT)
    return Drawing(name, sheet.figure, COLUMNS, table, _caption(series, platform, modes, points, largest, cut_off, [label for label in labels if (label, largest) in points and label not in strips]), {"panels": recipe, "legends": sheet.legends})


def _origins(point, run_id):
    return {"run_id": run_id, "counts_origin": point.counts_origin, "validated": point.validated, "compute_times_origin": point.compute_times_origin,
            "network": point.network, "iterations": point.iterations, "seeds": len(point.rows)}


def _bars(axes, rows, limit):
    for row in rows:
        _, colour, hatch = KINDS[row["kind"]]
        length = row["to"] - row["from"]
        if length > 0:
            narrow = length < NARROW * limit  # an edge would be all of it
            axes.barh(row["place"], length, left=row["from"], height=row["height"], color=colour, hatch="" if narrow else hatch, edgecolor=colour if narrow else "black", linewidth=0.3, zorder=2)


def _mark_cut(axes, limit, place, total):
    """Writes the length of what goes on behind the panel's edge."""
    if total > limit * EDGE:
        axes.text(limit * EDGE * 0.99, place, f"{total:.4g} →", ha="right", va="center", fontsize=style.TEXT_PT, zorder=5,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})


def _frame(axes, limit, title, width_in):
    axes.set_xlim(0, limit * EDGE if limit > 0 else 1)
    axes.tick_params(axis="y", length=0, pad=2)
    axes.tick_params(axis="x", pad=1.5)
    axes.xaxis.set_major_locator(style.ticker.MaxNLocator(nbins=max(3, int(width_in / 0.42)), steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(style.ticker.FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.set_title(title, pad=2.5, fontsize=style.TEXT_PT)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)


def _caption(series, platform, modes, points, largest, cut_off, without):
    ones = [one for _, one in modes]
    exposed = "; ".join(f"{label}: {points[label, largest].mean('exposed_exchange_time_s') / points[label, largest].mean('iteration_time_s_mean'):.3g} of the iteration"
                        for label, _ in modes if (label, largest) in points)
    return caption.join(
        f"Computing and communicating in every timeline, {series[0]}{'' if series[1] == '{}' else ' ' + series[1]} on {platform}.",
        f"On top the last recorded iteration at n = {largest} of the worker that is done last: in each row a strip of what it computes and one for every stream of calls, hidden where it computes "
        "at the same time, exposed where it waits. Strips count from the iteration's begin, which is the backward pass where communication overlaps the next forward pass (p3, hybrid)."
        + (f" Without a strip, as an earlier version made their runs: {'; '.join(without)}." if without else ""),
        "Below means over the iterations: computing alone, both at once (communication that is hidden), communicating alone (exposed) add up to the iteration. "
        f"Exposed at n = {largest}: {exposed}." + (" Iterations of more than three times the shortest are cut off where their length is written." if cut_off else ""),
        caption.facets(ones), caption.times(ones), caption.counts(ones), caption.iterations(ones))
