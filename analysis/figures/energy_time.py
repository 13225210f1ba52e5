"""Fidelity against time: the share of the gradients' energy that is exchanged, against the iteration time, with the Pareto front."""
import math

from analysis import caption, files, panels, pick, style
from analysis.figures import NotApplicable
from analysis.results import DENSE, slices, varying

KEYS = ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")
UNDECIDED = "no column energy_exchanged_mean with values (results of an earlier version: run the experiment again)"


def draw(results, style_name):
    found = slices(results, "time", KEYS)
    energies = {row.run_id: row.values["energy_exchanged_mean"] for row in results.group("selection")}
    if found and not any(math.isfinite(energies.get(row.run_id, math.nan)) for one in found for row in one.rows(dense=False)):
        raise NotApplicable("the energy that was exchanged", UNDECIDED)
    groups = {}
    for one in found:
        groups.setdefault(tuple((k, v) for k, v in one.facets.items() if k != "density"), []).append(one)
    for group in groups.values():
        group.sort(key=lambda one: one.facets["density"])
    across = [key for key in varying(found) if key != "density"] if found else []
    return [_draw(group, energies, style_name, files.name("energy_time", across, group[0].facets)) for group in groups.values()]


def front(points):
    """Of (time, energy) those than which no other is at least as fast and at least as faithful and better in one; by ascending time."""
    best, kept = -math.inf, []
    for time, energy in sorted(set(points), key=lambda p: (p[0], -p[1])):
        if energy > best:
            kept.append((time, energy))
            best = energy
    return kept


def _stairs(kept, right):
    """The front as a line: from a time on, the largest energy that can be had by then."""
    line = [kept[0]]
    for point in kept[1:]:
        line += [(point[0], line[-1][1]), point]
    return line + [(right, line[-1][1])]


def _draw(group, energies, style_name, name):
    looks = style.fit(style.looks({series for one in group for series in one.curves}), style.WIDTH_IN[style_name] - 0.6)
    several = len(group) > 1
    ns = pick.telling_workers(group[0]) if group[0].sparse() else group[0].workers()[-1:]
    shown = []
    for n in ns:
        lines = []
        for series in looks:
            points = []
            for one in group[:1] if series[0] in DENSE else group:
                p = pick.point_at(one, series, n)
                if p is None:
                    continue
                energy = sum(energies.get(row.run_id, math.nan) for row in p.rows) / len(p.rows)
                points.append({"x": p.mean("iteration_time_s_mean") * 1e3, "y": energy, "low": None, "high": None, "status": p.status,
                               "cells": {"density_wanted": 1.0 if series[0] in DENSE else one.facets["density"], "workers": n, **panels.origin(p)}})
            if points:
                lines.append(panels.Line(series, points))
        points = [(p["x"], p["y"]) for line in lines for p in line.points if math.isfinite(p["y"])]
        status = max((p["status"] for line in lines for p in line.points), key=panels.STATUS_RANK.index)
        words = {"captured": "captured", "projected": "projected", "unvalidated": "not validated"}[status]
        kept = front(points)
        references = [panels.Reference("pareto_front", _stairs(kept, max(x for x, _ in points)), style.GREY, "-")] if kept else []
        for line in lines:
            for p in line.points:
                p["cells"]["on_pareto_front"] = (p["x"], p["y"]) in kept
        shown.append(panels.Panel(f"n = {n}", f"n = {n}, {words}", "energy exchanged", lines, xlabel="iteration time (ms)", xscale="log", yscale="linear",
                                  references=references, ylim=(0.0, 1.08), join=several))
    text = caption.join(
        f"Fidelity against time on {group[0].facets['platform']}: the energy exchanged is the sum over the workers of the squared entries that they "
        "contributed, over the sum of all their squared accumulator entries (gradient plus residual); 1 is everything. Up and to the left is better. The grey line "
        "is the Pareto front: the most energy that any of these exchanges in at most that time.",
        caption.facets(group), f"Drawn here: n = {caption.listing(ns)}." + (" A line joins the densities of one sparsifier; the CSV names them." if several else ""),
        caption.series(group), caption.times(group), caption.counts(group), caption.iterations(group),
        "Captured counts: filled markers. Projected: hollow markers. What a sparsifier does not exchange stays in its residual; how the training "
        "converges is not in these numbers.", panels.not_drawn(shown, looks))
    wide = style.wide(style_name)
    return panels.draw(name, style_name, shown, len(shown) if wide else 1, looks, "iteration_time_ms", ("energy_exchanged",), text,
                       notes=[panels.note("Pareto front", style.GREY, "-")], captured=group[0].facets["captured_workers"], height_in=2.3 if wide else 1.9,
                       shared_y=wide)
