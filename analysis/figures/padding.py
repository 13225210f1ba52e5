"""Padding f = n max k_i / sum k_i: against n, and over the iterations at the largest captured and the largest n."""
from analysis import caption, files, panels, pick, style
from analysis.results import slices, varying


def draw(results, style_name):
    found = [one for one in slices(results, "selection", ("trace", "density")) if one.sparse()]
    across = varying(found) if found else []
    return [_draw(results, one, style_name, files.name("padding", across, one.facets)) for one in found]


def _draw(results, one, style_name, name):
    wide = style.wide(style_name)
    looks = style.fit(style.looks(one.sparse()), style.WIDTH_IN[style_name] - 0.6)
    lines = [panels.over_n(series, one.curves[series], "padding_mean", "padding_p05", "padding_p95") for series in looks]
    for line in lines:
        for point in line.points:
            point["cells"]["workers"] = point["x"]
    ns = one.workers(dense=False)
    ideal = [panels.Reference("no_padding", [(ns[0], 1.0), (ns[-1], 1.0)], stretch=True)]
    shown = [panels.Panel("workers", "against n, means", "padding n max k / Σ k", lines, references=ideal, shade=one.validated_up_to())]
    if results.has_series():
        for n in pick.telling_workers(one):
            points = {series: pick.point_at(one, series, n) for series in looks}
            lines = [panels.Line(series, pick.over_iterations(results, p, "padding")) for series, p in points.items() if p]
            status = max((p.status for p in points.values() if p), key=panels.STATUS_RANK.index)
            words = {"captured": "captured", "projected": "projected", "unvalidated": "not validated"}[status]
            xs = [p["x"] for line in lines for p in line.points]
            shown.append(panels.Panel(f"n = {n}", f"n = {n}, {words}", "padding n max k / Σ k", lines, xlabel="iteration", xscale="linear",
                                      references=[panels.Reference("no_padding", [(min(xs), 1.0), (max(xs), 1.0)], stretch=True)]))
    low, high = panels.y_limits(shown)
    for panel in shown:
        panel.ylim = (low, max(high, 1.6))
    return panels.draw(name, style_name, shown, len(shown) if wide else 1, looks, "x", ("value", "p05", "p95"), _caption(one, shown, looks),
                       notes=[panels.note("no padding, f = 1")], captured=one.facets["captured_workers"], height_in=2.0 if wide else 1.5, shared_y=wide)


def _caption(one, shown, looks):
    return caption.join(
        "Padding of a padded all-gather, f = n max k_i / sum k_i, k_i being the number of indices of worker i: f = 1 when all send as much, f times "
        "as many entries as needed travel otherwise. First panel: against the number of workers n"
        + ("; others: in every recorded iteration (counted from the first of the replay, warm-up included) at the n above the panel." if len(shown) > 1
           else "; the runs' series are not in this directory, so that nothing is shown over the iterations."),
        caption.facets([one], dense=False), caption.series([one], dense=False), caption.counts([one]), caption.iterations([one], "bands"),
        panels.STATUS_SENTENCE, panels.not_drawn(shown, looks))
