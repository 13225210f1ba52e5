"""Selection threshold and actual density U/N in every recorded iteration: a row of panels each, a column per n."""
import math

from analysis import caption, files, panels, pick, style
from analysis.figures import NotApplicable
from analysis.results import slices, varying

BROWN = "#7A4B00"


def draw(results, style_name):
    found = [one for one in slices(results, "selection", ("trace", "density")) if one.sparse()]
    if found and not results.has_series():
        raise NotApplicable("the runs' series in runs/", "no such directory")
    if all(row.iterations < 2 for one in found for row in one.rows(dense=False)):
        raise NotApplicable("at least two recorded iterations", "one")
    across = varying(found) if found else []
    return [_draw(results, one, style_name, files.name("density_over_iterations", across, one.facets)) for one in found]


def _draw(results, one, style_name, name):
    looks = style.fit(style.looks(one.sparse()), style.WIDTH_IN[style_name] - 0.6)
    ns = pick.telling_workers(one)
    density = one.facets["density"]
    rows = {"threshold": [], "density": []}
    for n in ns:
        points = {series: pick.point_at(one, series, n) for series in looks}
        status = max((p.status for p in points.values() if p), key=panels.STATUS_RANK.index)
        words = {"captured": "captured", "projected": "projected", "unvalidated": "not validated"}[status]
        for kind, label in (("threshold", "threshold"), ("density", "actual density U/N")):
            lines = [panels.Line(series, pick.over_iterations(results, p, kind)) for series, p in points.items() if p]
            for line in lines:
                for p in line.points:  # a log axis shows positive values only
                    p["y"] = p["y"] if p["y"] > 0 else math.nan
            xs = [p["x"] for line in lines for p in line.points]
            panel = panels.Panel(f"{kind}, n = {n}", f"n = {n}, {words}", label, lines, xlabel="iteration", xscale="linear")
            if kind == "density":
                panel.references = [panels.Reference("density_wanted", [(min(xs), density), (max(xs), density)], BROWN, "-", stretch=True)]
            rows[kind].append(panel)
    if not any(math.isfinite(p["y"]) for panel in rows["threshold"] for line in panel.lines for p in line.points):
        del rows["threshold"]
    shown = []
    for row in rows.values():
        limits = panels.y_limits(row)
        for panel in row:
            panel.ylim = limits
        shown += row
    wide = style.wide(style_name)
    if not wide:  # one below the other; density first in the order of reading
        columns = 1
    else:
        columns = len(ns) if len(ns) > 1 else len(shown)
    text = caption.join(
        ("Selection threshold (mean over the workers) and a" if "threshold" in rows else "A") + "ctual density U/N in every recorded iteration, "
        "counted from the first of the replay (warm-up included). The line is the density wanted, k/N.",
        caption.facets([one], dense=False), f"Drawn here: n = {caption.listing(ns)}.", caption.series([one], dense=False), caption.counts([one]),
        "One value per iteration" + ("; the mean over the seeds, bands from the lowest to the highest seed." if any(len(p.rows) > 1 for c in one.curves.values() for p in c) else "."),
        "Captured counts: solid lines, filled markers. Projected: dashed (beyond the validated range dotted) lines, hollow markers. Markers stand at some "
        "iterations only.", panels.not_drawn(shown, looks))
    return panels.draw(name, style_name, shown, columns, looks, "iteration", ("value", "p05", "p95"), text,
                       notes=[panels.note("density wanted, k/N", BROWN, "-")], captured=one.facets["captured_workers"],
                       height_in=1.7 if wide else 1.35, shared_y=wide and len(ns) > 1, shared_x=wide and len(ns) > 1)
