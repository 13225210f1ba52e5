"""Time of the selection kernels against n, a panel per kernel profile or, with one profile, per density; a file per platform where it matters."""
import math

from analysis import caption, files, panels, pick, style
from analysis.figures import NotApplicable
from analysis.figures.breakdown import unit
from analysis.results import slices, varying

KEYS = ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")


def draw(results, style_name):
    found = [one for one in slices(results, "time", KEYS) if one.sparse()]
    if found and not any(p.mean("selection_time_s") > 0 for one in found for points in one.sparse().values() for p in points):
        raise NotApplicable("a sparsifier with a selection time", "none")
    groups = pick.alike([_without_baselines(one) for one in found], ("selection_time_s",), ("platform", "all_gather", "all_reduce", "broadcast"))
    drawn = {id(one): same for one, same in groups}
    firsts = sorted((one for one, _ in groups), key=lambda one: -one.facets["density"])
    across = varying(firsts) if firsts else []
    panel_key = "density" if "density" in across and "profile" not in across else "profile"
    drawings = []
    for page, whole in files.pages(firsts, panel_key, 3 if style.wide(style_name) else 1):
        names = [key for key in across if key != panel_key or not whole]
        facets = dict(page[0].facets, **{panel_key: [one.facets[panel_key] for one in page]})
        drawings.append(_draw(page, panel_key, drawn, style_name, files.name("selection_time", names, facets)))
    return drawings


def _spread(point):
    return point.spread("selection_time_s", "selection_time_s_kernel_low", "selection_time_s_kernel_high")


def _line(series, points, factor):
    line = panels.over_n(series, points, "selection_time_s", scale=lambda _: factor)
    for drawn, point in zip(line.points, points):
        drawn["low"], drawn["high"] = (value * factor if math.isfinite(value) else None for value in _spread(point))
    return line


def _bands(page):
    """What bands are, in words; nothing where there are none."""
    points = [p for one in page for points in one.curves.values() for p in points if math.isfinite(_spread(p)[0])]
    seeds, quartiles = any(len(p.rows) > 1 for p in points), any(math.isfinite(p.rows[0].values["selection_time_s_kernel_low"]) for p in points)
    return "" if not points else (" Bands: " + ("from the lowest to the highest seed" if seeds else "")
                                  + ((", " if seeds else "") + "with every kernel time at its lower and its upper quartile in the profile" if quartiles else "") + ".")


def _without_baselines(one):
    return type(one)(one.facets, one.sparse())


def _draw(page, panel_key, drawn, style_name, name):
    looks = style.fit(style.looks({series for one in page for series in one.curves}), style.WIDTH_IN[style_name] - 0.6)
    longest = max((p.mean("selection_time_s") for one in page for points in one.curves.values() for p in points if p.mean("selection_time_s") > 0), default=1.0)
    factor, unit_name = unit(longest)
    shown = []
    for one in page:
        lines = [_line(series, one.curves[series], factor) for series in looks if series in one.curves]
        for line in lines:
            for p in line.points:
                p["cells"].update(unit=unit_name, density_wanted=one.facets["density"])
        ns = one.workers()
        first = max((line.points[0]["y"] for line in lines if line.points and line.points[0]["x"] == ns[0] and line.points[0]["y"] > 0), default=None)
        # As steep as a rule whose work is shared by n workers can be.
        guide = [panels.Reference("one_over_n", [(n, first * ns[0] / n) for n in ns])] if first and len(ns) > 1 else []
        title = one.facets["profile"] if panel_key == "profile" else f"density {caption.number(one.facets['density'])}"
        shown.append(panels.Panel(title, title, f"selection time ({unit_name})", lines, references=guide,
                                  shade=one.validated_up_to()))
    everything = [other for one in page for other in drawn[id(one)]]
    text = caption.join(
        "Time of the selection kernels in an iteration (threshold selection, top-k) against the number of workers n: the time by which selection "
        "makes the latest worker later. The line falls as 1/n from the slowest at the smallest n: what perfectly shared work would need.",
        caption.facets(everything, dense=False) + (" The selection time is the same in all of these." if len(everything) > len(page) else ""),
        caption.series(page), caption.times(page), caption.counts(page), caption.iterations(page) + _bands(page), panels.STATUS_SENTENCE, panels.not_drawn(shown, looks))
    return panels.draw(name, style_name, shown, len(page), looks, "workers", ("value", "low", "high"), text, notes=[panels.note("1/n")],
                       captured=page[0].facets["captured_workers"], height_in=2.3, shared_y=True)
