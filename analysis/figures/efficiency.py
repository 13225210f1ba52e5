"""Scaling efficiency, speed-up over n, against n: a panel per platform, break-even points with dense fp32 marked."""
import math

from analysis import caption, files, panels, style
from analysis.figures.speed_up import STAR, bands_sentence, entries_of, on_curve, point_band
from analysis.results import slices, varying

# From this efficiency on a linear axis shows what there is to see.
LEAST_ON_LINEAR_AXIS = 0.05


def draw(results, style_name):
    found = slices(results, "time", ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast"))
    across = varying(found) if found else []
    drawings = []
    for page, whole in files.pages(found, "platform", 3 if style.wide(style_name) else 1):
        names = [key for key in across if key != "platform" or not whole]
        facets = dict(page[0].facets, platform=[one.facets["platform"] for one in page])
        drawings.append(_draw(results, page, style_name, files.name("efficiency", names, facets)))
    return drawings


def _line(series, points):
    line = panels.over_n(series, points, "speed_up", scale=lambda p: 1 / p.workers)
    for drawn, point in zip(line.points, points):
        drawn["low"], drawn["high"] = (value / point.workers if math.isfinite(value) else None for value in point_band(point))
    return line


def _draw(results, page, style_name, name):
    looks = style.fit(style.looks({series for one in page for series in one.curves}), style.WIDTH_IN[style_name] - 0.6)
    shown, starred = [], False
    for one in page:
        lines = [_line(series, one.curves[series]) for series in looks if series in one.curves]
        marks = []
        for entry in entries_of(results, one):
            for workers in entry.points if entry.baseline == "dense" else ():
                y = on_curve(one.curves[entry.sparsifier, entry.parameters], workers) / workers
                if math.isfinite(y):
                    marks.append(panels.Mark("break_even", (entry.sparsifier, entry.parameters), workers, y, {"seeds": None}))
        starred = starred or bool(marks)
        ns = one.workers()
        shown.append(panels.Panel(one.facets["platform"], one.facets["platform"], "efficiency, speed-up / n", lines, marks=marks, shade=one.validated_up_to(),
                                  references=[panels.Reference("ideal", [(ns[0], 1.0), (ns[-1], 1.0)], stretch=True)]))
    lowest = min((p["y"] for panel in shown for line in panel.lines for p in line.points if math.isfinite(p["y"])), default=1.0)
    for panel in shown:
        if lowest >= LEAST_ON_LINEAR_AXIS:
            panel.yscale, panel.ylim = "linear", (0.0, 1.06)
        else:
            panel.ylim = (lowest / 1.3, 1.3)
    text = caption.join(
        "Scaling efficiency against the number of workers n: speed-up over n, where speed-up is n times the iteration time of one worker without "
        "communication, divided by the iteration time of n workers. The ideal is 1.",
        caption.facets(page), caption.series(page), caption.times(page), caption.counts(page), bands_sentence(page), panels.STATUS_SENTENCE,
        "Stars: break-even with dense fp32." if starred else "No curve crosses that of dense fp32.", panels.not_drawn(shown, looks))
    return panels.draw(name, style_name, shown, len(page), looks, "workers", ("value", "low", "high"), text,
                       notes=[panels.note("ideal")] + ([STAR] if starred else []), captured=page[0].facets["captured_workers"], height_in=2.3,
                       shared_y=True)
