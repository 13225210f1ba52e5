"""Sentences that captions share: every parameter, and for every number whether it is measured, modelled, assumed or projected."""
from analysis import style
from analysis.results import OPTIONAL_KEYS

NETWORKS = {"simgrid": "SimGrid", "recurrence": "the max-plus recurrence over the message graph"}


def number(value):
    return f"{value:.10g}"


def listing(values):
    values = [str(v) for v in dict.fromkeys(values)]
    return values[0] if len(values) == 1 else ", ".join(values[:-1]) + " and " + values[-1] if values else "none"


def facets(slices, dense=True):
    """The fixed parameters of what is drawn: trace, density, workers, platform, profile, all-gather, seeds."""
    rows = [row for one in slices for row in one.rows(dense)]
    parts = ["Trace: " + listing(one.facets["trace"] for one in slices),
             "density wanted: " + listing(number(one.facets["density"]) for one in slices),
             "workers: n = " + ", ".join(str(n) for n in sorted({n for one in slices for n in one.workers(dense)}))]
    for key, label in (*((key, key.replace("_", " ")) for key in (*OPTIONAL_KEYS, "compute_times_origin", "warmup_iterations")), ("platform", "platform"), ("profile", "kernel profile"), ("all_gather", "all-gather"), ("all_reduce", "all-reduce"),
                       ("broadcast", "broadcast")):
        values = [one.facets[key] for one in slices if one.facets.get(key) not in (None, "")]
        if values:
            parts.append(f"{label}: {listing(values)}")
    parts.append("seed: " + listing(sorted({row.seed for row in rows})))
    return "; ".join(parts) + "."


def series(slices, dense=True):
    """Which sparsifiers with which parameters (those that differ from their defaults)."""
    names = style.order({key for one in slices for key in (one.curves if dense else one.sparse())})
    return "Sparsifiers: " + ", ".join(name if text == "{}" else f"{name} {text}" for name, text in names) + " (other parameters at their defaults)."


def iterations(slices, what=None):
    """How many iterations and seeds a value is the mean of, and what `what` (bands, whiskers) spans."""
    # The baselines need no warm-up: what is said is said of the sparsifiers.
    rows = [row for one in slices for row in one.rows(dense=False)] or [row for one in slices for row in one.rows()]
    counts = listing(sorted({row.iterations for row in rows}))
    seeds = max(len(point.rows) for one in slices for points in one.curves.values() for point in points)
    warm_up = {row.warmup_iterations for row in rows} - {""}
    counts += f" recorded iterations after {listing(sorted(warm_up))} of warm-up" if warm_up - {"0"} else " recorded iterations"
    text = f"Values are means over {counts}" + (f" and {seeds} seeds" if seeds > 1 else "")
    if what and seeds > 1:
        text += f"; {what} reach from the lowest 5 % to the highest 95 % quantile over iterations of any seed"
    elif what:
        text += f"; {what} span the 5 % to 95 % quantiles over iterations"
    return text + "."


def counts(slices):
    """Origin of the counts: captured or projected, and how far that was validated."""
    rows = [row for one in slices for row in one.rows(dense=False)] or [row for one in slices for row in one.rows()]
    text = ""
    captured = sorted({row.workers for row in rows if row.status == "captured"})
    workers = listing(sorted({one.facets["captured_workers"] for one in slices}))
    if captured:
        text += f"Counts for n = {listing(captured)} come from the replay of captured workers' gradients (W = {workers}). "
    for status, words in (("projected", "inside the range validated against captured workers"),
                          ("unvalidated", "beyond the range validated against captured workers")):
        found = [row for row in rows if row.status == status]
        if found:
            text += (f"Counts for n = {listing(sorted({row.workers for row in found}))} are projected from W = {workers} captured workers "
                     f"(expansion: {listing(sorted({row.expansion for row in found}))}), {words}. ")
    return text.strip()


def times(slices):
    """Origin of the times: kernels, forward and backward pass, network."""
    rows = [row for one in slices for row in one.rows()]
    sparse = [row for one in slices for row in one.rows(dense=False)] or rows
    networks = sorted({part for row in rows for part in row.network.split("+")} - {"none"})
    return ("Selection kernel times: " + listing(sorted({row.kernel_times_origin for row in sparse}))
            + ". Forward and backward times: " + listing(sorted({row.compute_times_origin for row in rows}))
            + (". Communication times are modelled: message by message on the platform description, timed by " if networks else ". Nothing is sent")
            + (listing(NETWORKS.get(network, network) for network in networks) if networks else "")
            + ". Every iteration time is therefore a model's, not measured on a cluster of n workers.")


def warnings(results, most=12):
    """The warnings of the whole result directory, the first so many in full."""
    if not results.warnings:
        return ""
    shown = results.warnings[:most]
    more = len(results.warnings) - len(shown)
    return "Warnings: " + "; ".join(shown) + (f"; and {more} more in summary.json" if more else "") + "."


def missing(names):
    return "Not drawn, for want of positive finite values: " + listing(names) + "." if names else ""


def join(*parts):
    return "\n".join(part for part in parts if part) + "\n"
