"""Bytes that a worker sends in an iteration against n, with the dense baselines."""
from analysis import caption, files, panels, pick, style
from analysis.results import slices, varying

KEYS = ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")
UNITS = ((1e3, 1.0, "bytes"), (1e6, 1e-3, "kB"), (1e9, 1e-6, "MB"), (float("inf"), 1e-9, "GB"))


def draw(results, style_name):
    found = slices(results, "traffic", KEYS)
    groups = pick.alike(found, ("bytes_sent_per_worker_mean", "bytes_sent_per_worker_max"), ("platform", "profile"))
    drawn = {id(one): same for one, same in groups}
    firsts = sorted((one for one, _ in groups), key=lambda one: -one.facets["density"])
    across = varying(firsts) if firsts else []
    drawings = []
    for page, whole in files.pages(firsts, "density", 3 if style.wide(style_name) else 1):
        names = [key for key in across if key != "density" or not whole]
        facets = dict(page[0].facets, density=[one.facets["density"] for one in page])
        drawings.append(_draw(page, drawn, style_name, files.name("traffic", names, facets)))
    return drawings


def _draw(page, drawn, style_name, name):
    looks = style.fit(style.looks({series for one in page for series in one.curves}), style.WIDTH_IN[style_name] - 0.6)
    most = max((p.mean("bytes_sent_per_worker_max") for one in page for points in one.curves.values() for p in points), default=1.0)
    factor, unit_name = next((factor, name) for below, factor, name in UNITS if not most >= below)
    shown = []
    for one in page:
        lines = [panels.over_n(series, one.curves[series], "bytes_sent_per_worker_mean", "bytes_sent_per_worker_mean", "bytes_sent_per_worker_max",
                               scale=lambda _: factor) for series in looks if series in one.curves]
        for line in lines:
            for p in line.points:
                p["cells"].update(unit=unit_name, density_wanted=one.facets["density"], kernel_times_origin=None, compute_times_origin=None)
        density = caption.number(one.facets["density"])
        shown.append(panels.Panel(f"density {density}", f"density {density}" if len(page) > 1 else None, f"sent per worker ({unit_name})", lines,
                                  shade=one.validated_up_to()))
    text = caption.join(
        "Bytes that a worker sends in an iteration against the number of workers n: line and markers the mean over the workers, bands up to the worker "
        "that sends most.",
        caption.facets([other for one in page for other in drawn[id(one)]]) + (" Platform and profile make no difference." if any(len(drawn[id(one)]) > 1 for one in page) else ""),
        caption.series(page), caption.counts(page), caption.iterations(page), panels.STATUS_SENTENCE, panels.not_drawn(shown, looks))
    return panels.draw(name, style_name, shown, len(page), looks, "workers", ("value", "mean", "largest"), text,
                       captured=page[0].facets["captured_workers"], height_in=2.3, shared_y=True)
