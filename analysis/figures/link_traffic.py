"""Bytes that an iteration moves over the links of every class, per worker, against n."""
import math

from analysis import caption, files, panels, pick, style
from analysis.figures import NotApplicable
from analysis.figures.traffic import KEYS, UNITS
from analysis.results import slices, varying

CLASSES = (("device_link_bytes_mean", "device links"), ("nic_bytes_mean", "NICs"), ("network_link_bytes_mean", "network links"), ("global_link_bytes_mean", "global links"))


def draw(results, style_name):
    found = slices(results, "traffic", KEYS)
    if found and not any(math.isfinite(row.values[column]) for one in found for row in one.rows() for column, _ in CLASSES):
        raise NotApplicable("bytes by class of links", "no column nic_bytes_mean with values (results of an earlier version: run the experiment again)")
    groups = pick.alike(found, tuple(column for column, _ in CLASSES), ("profile",))
    across = varying([one for one, _ in groups]) if groups else []
    return [_draw(one, same, style_name, files.name("link_traffic", across, one.facets)) for one, same in groups]


def _draw(one, same, style_name, name):
    looks = style.fit(style.looks(one.curves), style.WIDTH_IN[style_name] - 0.6)
    used = [(column, label) for column, label in CLASSES if any(p.mean(column) > 0 for points in one.curves.values() for p in points)]
    most = max((p.mean(column) / p.workers for column, _ in used for points in one.curves.values() for p in points if p.mean(column) > 0), default=1.0)
    factor, unit_name = next((factor, unit) for below, factor, unit in UNITS if not most >= below)
    shown = []
    for column, label in used or CLASSES[1:2]:
        lines = [panels.over_n(series, one.curves[series], column, *((column, column) if any(len(p.rows) > 1 for p in one.curves[series]) else ()),
                               scale=lambda point: factor / point.workers) for series in looks if series in one.curves]
        for line in lines:
            for p in line.points:
                p["cells"].update(link_class=label, unit=unit_name, kernel_times_origin=None, compute_times_origin=None)
        shown.append(panels.Panel(label, label, f"crossed per worker ({unit_name})", lines, shade=one.validated_up_to()))
    nothing = [label for column, label in CLASSES if (column, label) not in used and any(math.isfinite(p.mean(column)) for points in one.curves.values() for p in points)]
    text = caption.join(
        f"Bytes that an iteration moves over the links of {one.facets['platform']}, by class of links, over the number of workers n: a byte counts once for every link of the class that it "
        "crosses (a message between nodes crosses the device link and the NIC of both ends). Device links: NVLink, PCIe inside a node; NICs; network links: those between switches, routers or "
        "nodes; global links: between groups of a dragonfly." + (f" Nothing crosses {caption.listing(nothing)}." if nothing else ""),
        caption.facets(same), caption.series([one]), caption.counts([one]), caption.iterations([one], "") + (" Bands reach from the lowest to the highest seed." if _several(one) else ""),
        panels.STATUS_SENTENCE, panels.not_drawn(shown, looks))
    wide = style.wide(style_name)
    return panels.draw(name, style_name, shown, min(len(shown), 3) if wide else 1, looks, "workers", ("value", "lowest_seed", "highest_seed"), text,
                       captured=one.facets["captured_workers"], height_in=2.1 if wide else 1.7, shared_y=True, shared_x=not wide)


def _several(one):
    return any(len(p.rows) > 1 for points in one.curves.values() for p in points)
