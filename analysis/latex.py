"""Tables of the main numbers for LaTeX (booktabs): one per set of fixed parameters, rows by n and sparsifier."""
import math

from analysis import caption, files, pick, style
from analysis.figures.speed_up import entries_of
from analysis.results import DENSE, slices, varying

KEYS = ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")
_SPECIAL = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
            "^": r"\textasciicircum{}"}
MARKS = {"captured": "", "projected": r"^\dagger", "unvalidated": r"^\ddagger"}


def escape(text):
    return "".join(_SPECIAL.get(c, c) for c in text)


def tables(results):
    """(name of the file without ending, text) of every table."""
    found = slices(results, "time", KEYS)
    selection = {row.run_id: row for row in results.group("selection")}
    across = varying(found) if found else []
    names = files.unique([files.name("main", across, one.facets) for one in found])
    return [(name, _table(results, one, selection, name)) for one, name in zip(found, names)]


def figures(value, digits=3):
    """A number with so many significant digits, without an exponent."""
    if value is None or not math.isfinite(value):
        return "--"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(decimals, 9)}f}"
    return text if float(text) else r"$<10^{-9}$"


def _mean(point, selection, column):
    rows = [selection.get(row.run_id) for row in point.rows]
    return sum(row.values[column] for row in rows) / len(rows) if all(rows) else math.nan


def _table(results, one, selection, name):
    looks = style.looks(one.curves)
    breaks = {}
    for entry in entries_of(results, one):
        if entry.baseline == "dense":
            breaks.setdefault((entry.sparsifier, entry.parameters), []).append(entry)
    ns = pick.telling_workers(one) if one.sparse() else one.workers()[-1:]
    lines = []
    statuses = set()
    for n in ns:
        points = [(series, point) for series in looks for point in one.curves[series] if point.workers == n]
        sparse = [p.status for s, p in points if s[0] not in DENSE] or ["captured"]
        status = max(sparse, key=("captured", "projected", "unvalidated").index)
        statuses.add(status)
        times = [p.mean("iteration_time_s_mean") for _, p in points]
        fastest = min((t for t in times if math.isfinite(t)), default=math.nan)
        lines += [r"\midrule", rf"\multicolumn{{10}}{{l}}{{$n = {n}{MARKS[status]}$}} \\"]
        for series, point in points:
            time = point.mean("iteration_time_s_mean")
            exchange = point.mean("index_exchange_time_s") + point.mean("value_exchange_time_s")
            dense = series[0] in DENSE
            shown = figures(time * 1e3, 4)
            cells = [escape(looks[series].label.replace(r"\$", "$")),
                     "--" if dense else figures(_mean(point, selection, "build_up_mean")),
                     figures(100 * _mean(point, selection, "actual_density_mean")),
                     "--" if dense else figures(_mean(point, selection, "padding_mean")),
                     "--" if dense else figures(point.mean("selection_time_s") * 1e3), figures(exchange * 1e3),
                     rf"\textbf{{{shown}}}" if time == fastest else shown, figures(point.mean("speed_up")), figures(point.mean("speed_up") / n),
                     _break_even(breaks.get(series), dense)]
            lines.append(" & ".join(cells) + r" \\")
    notes = [words for status, words in (("projected", r"$^\dagger$ counts projected inside the validated range"),
                                         ("unvalidated", r"$^\ddagger$ counts projected beyond the validated range")) if status in statuses]
    fixed = ", ".join(f"{label} {one.facets[key]}" for key, label in (("trace", "trace"), ("platform", "platform"), ("profile", "kernel profile"),
                                                                       ("all_gather", "all-gather"), ("all_reduce", "all-reduce"), ("broadcast", "broadcast")))
    text = (f"Mean iteration for {fixed}; density wanted {caption.number(one.facets['density'])}. Times in ms. The shortest iteration at an n is bold. "
            "Break-even: n from which (>) or up to which (<) an iteration is shorter than that of dense fp32.")
    origin = "\n".join("% " + line for line in caption.join(caption.series([one]), caption.times([one]), caption.counts([one]), caption.iterations([one])).splitlines())
    return "\n".join([
        r"% \usepackage{booktabs}", origin, r"\begin{table}", r"\centering",
        rf"\caption{{{escape(text).replace('(>)', '($>$)').replace('(<)', '($<$)')}" + (" " + "; ".join(notes) + "." if notes else "") + "}", rf"\label{{tab:{name}}}",
        r"\begin{tabular}{lrrrrrrrrr}", r"\toprule",
        r"exchange & build-up & $U/N$ (\%) & padding & selection & exchange & iteration & speed-up & efficiency & break-even \\",
        *lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _break_even(entries, dense):
    if dense or not entries:
        return "--"
    texts = []
    for entry in entries:
        if entry.points:
            edges = []
            for index, point in enumerate(entry.points):
                after = entry.points[index + 1] if index + 1 < len(entry.points) else math.inf
                edges.append(("$>$" if any(point < n < after for n in entry.wins_at) else "$<$") + figures(point))
            texts.append(", ".join(edges))
        elif entry.wins_at and not entry.loses_at:
            texts.append("always")
        elif entry.loses_at and not entry.wins_at:
            texts.append("never")
        else:
            texts.append("--")
    return " / ".join(dict.fromkeys(texts))
