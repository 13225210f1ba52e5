#!/usr/bin/env python3
"""Writes report.html of a result directory: one file that needs nothing else, with figures (values on hover), tables that sort and filter,
provenance and warnings. Exit status: 0 done, 1 the report could not be made, 2 wrong input or usage."""
import html
import io
import json
import math
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import claims, plot  # noqa: E402
from analysis import results as result_files  # noqa: E402
from analysis.figures import REGISTRY, NotApplicable  # noqa: E402

PARTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report_parts")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
# Group of results.csv, column, heading, factor of the unit shown.
NUMBERS = (("selection", "build_up_mean", "build-up U/k", 1), ("selection", "actual_density_mean", "U/N (%)", 100), ("selection", "padding_mean", "padding", 1),
           ("selection", "energy_exchanged_mean", "energy exchanged", 1), ("time", "iteration_time_s_mean", "iteration (ms)", 1e3),
           ("time", "forward_backward_time_s", "forward + backward (ms)", 1e3), ("time", "selection_time_s", "selection (ms)", 1e3),
           ("time", "index_exchange_time_s", "index exchange (ms)", 1e3), ("time", "value_exchange_time_s", "value exchange (ms)", 1e3), ("time", "other_time_s", "other (ms)", 1e3),
           ("time", "speed_up", "speed-up", 1), ("traffic", "bytes_sent_per_worker_mean", "sent per worker (kB)", 1e-3), ("traffic", "messages_mean", "messages", 1))
VARIED = ("trace", "profile", "captured_workers", "expansion_requested", "all_gather", "all_reduce", "broadcast", *result_files.OPTIONAL_KEYS, "warmup_iterations", "iterations", "seed")
CHOICES = ("sparsifier", "density", "workers", "platform", "profile")


def esc(text):
    return html.escape(str(text))


def embedded(value):
    """JSON inside a script element: nothing in it can end the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def short(value, digits=5):
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def optional(directory, name, read):
    path = os.path.join(directory, name)
    return read(path) if os.path.exists(path) else None


# Figures

def svg_text(figure, prefix):
    """A figure as an SVG element for a page: ids that no other figure has, no size of its own."""
    from analysis import style

    file = io.BytesIO()
    style.save(figure, file, "svg")
    text = file.getvalue().decode()
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\g<1>#{prefix}", text)
    return re.sub(r"\n\s*", "\n", text).strip()


def _places(drawing):
    """Where the table's rows are drawn, in the SVG's units: {index of the row: (x, y)}."""
    height = drawing.figure.get_size_inches()[1] * 72
    found = {}
    for panel in drawing.recipe["panels"]:
        axes, more = panel["axes"], panel["more"]
        for index, row in enumerate(drawing.table):
            if any(row.get(key) != value for key, value in panel["where"].items()):
                continue
            at = _place(panel["kind"], more, row)
            if at is None or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in at):
                continue
            (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
            if left <= at[0] <= right and low <= at[1] <= high:
                x, y = axes.transData.transform(at)
                found.setdefault(index, (round(x * 72 / drawing.figure.dpi, 2), round(height - y * 72 / drawing.figure.dpi, 2)))
    return found


def _place(kind, more, row):
    series = [row.get("sparsifier"), row.get("parameters")]
    if kind == "bars":
        return row["iteration"], more["series"].index(series)
    if kind == "strips":
        return (row["from"] + row["to"]) / 2, row["place"]
    if kind == "cells":
        return more["columns"].index(float(row["workers"])), more["lines"].index(row["line"])
    if kind == "ranges":
        return (row["workers"], [s[:2] for s in more["series"]].index(series)) if row["curve"] == "break_even" else None
    return row.get(more["x"]), row.get(more["y"])


def figure_html(drawing, name, number):
    from analysis import style

    svg = svg_text(drawing.figure, f"f{number}-")
    places = _places(drawing)
    columns = list(drawing.columns)
    rows, points = [], []
    for index, row in enumerate(drawing.table):
        cells = [plot.cell(row.get(column)) for column in columns]
        if index in places:
            points.append([*places[index], cells])
        else:
            rows.append(cells)
    labels = {f"{s} {p}": look.label.replace(r"\$", "$") for (s, p), look in
              style.looks({(row["sparsifier"], row["parameters"]) for row in drawing.table if row.get("sparsifier")}).items()}
    first, _, rest = drawing.caption.strip().partition("\n")
    about = "values at the points with the left and right arrow keys"
    return f"""<figure id="{esc(name)}">
<div class="plot" tabindex="0" role="application" aria-label="{esc(first)}" aria-description="{about}">
{svg}
</div>
<div class="bar"><button type="button" class="open">Zoom</button><button type="button" class="save">Save CSV</button><span class="soft">{esc(name)}</span></div>
<figcaption><p>{esc(first)}</p>{f'<details><summary>Parameters and origin of the numbers</summary>{"".join(f"<p>{esc(line)}</p>" for line in rest.splitlines())}</details>' if rest else ""}</figcaption>
<script type="application/json">{embedded({"columns": columns, "labels": labels, "points": points, "rows": rows})}</script>
</figure>"""


def figures_html(loaded):
    from analysis import files, style

    parts, missing, number = [], [], 0
    for entry in REGISTRY:
        style.reset("double")
        try:
            drawings = entry.draw(loaded, "double")
            if not drawings:
                raise NotApplicable("rows of its metric group", "none")
        except NotApplicable as reason:
            missing.append(f"{entry.title}: it {reason}.")
            continue
        parts.append(f'<h3 id="figures-{esc(entry.name)}">{esc(entry.title)}</h3><p class="soft">{esc(entry.description)}.</p>')
        for drawing, name in zip(drawings, files.unique([drawing.name for drawing in drawings])):
            number += 1
            parts.append(figure_html(drawing, name, number))
    if missing:
        parts.append("<h3>Figures that these results cannot make</h3><ul>" + "".join(f"<li>{esc(line)}</li>" for line in missing) + "</ul>")
    return "\n".join(parts)


# Tables

def table_html(caption, heads, rows, choices=(), filtered=True):
    """`heads`: (text, whether it is a number); `rows`: lists of cells, text or (text shown, value to sort by); `choices`: columns to choose a value of."""
    head = "".join(f'<th scope="col"{" class=n" if number else ""}><button type="button">{esc(text)}</button></th>' for text, number in heads)
    body = []
    for row in rows:
        cells = []
        for (_, number), cell in zip(heads, row):
            shown, value = cell if isinstance(cell, tuple) else (cell, None)
            cells.append(f'<td{" class=n" if number else ""}{f" data-v={chr(34)}{esc(value)}{chr(34)}" if value is not None and str(value) != shown else ""}>{esc(shown)}</td>')
        body.append("<tr>" + "".join(cells) + "</tr>")
    bar = ""
    if filtered:
        selects = []
        for column in choices:
            values = list(dict.fromkeys(row[column][0] if isinstance(row[column], tuple) else row[column] for row in rows))
            if len(values) > 1:
                options = "".join(f"<option>{esc(value)}</option>" for value in values)
                selects.append(f'<label>{esc(heads[column][0])}<select data-column="{column}"><option value="">all</option>{options}</select></label>')
        bar = (f'<div class="bar"><label>filter<input type="search" placeholder="words that must occur" aria-label="filter {esc(caption)}"></label>{"".join(selects)}'
               '<span class="count soft" role="status"></span></div>')
    return (f'<div class="table">{bar}<div class="scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table><thead><tr>{head}</tr></thead>'
            f'<tbody>\n{chr(10).join(body)}\n</tbody></table></div></div>')


def runs_table(loaded):
    runs = {}
    for row in loaded.rows:
        runs.setdefault(row.run_id, {})[row.metric_group] = row
    several = {key for key in VARIED if len({getattr(row, key) for row in loaded.rows}) > 1}
    keys = [("sparsifier", False), ("parameters", False), ("density", True), ("workers", True), ("platform", False)]
    keys += [(key, key in ("captured_workers", "iterations", "seed")) for key in VARIED if key in several]
    used = [number for number in NUMBERS if any(math.isfinite(groups[number[0]].values[number[1]]) for groups in runs.values() if number[0] in groups)]
    heads = [("n" if key == "workers" else key.replace("_", " "), number) for key, number in keys] + [(text, True) for _, _, text, _ in used]
    heads += [("counts", False), ("kernel times", False), ("run", False)]
    rows = []
    for run_id, groups in runs.items():
        first = next(iter(groups.values()))
        cells = [f"{getattr(first, key):.10g}" if number else ("" if key == "parameters" and first.parameters == "{}" else getattr(first, key)) for key, number in keys]
        for group, column, _, factor in used:
            value = groups[group].values[column] if group in groups else math.nan
            cells.append((short(value * factor), repr(value) if math.isfinite(value) else ""))
        cells += [{"captured": "captured", "projected": "projected", "unvalidated": "projected, not validated"}[first.status], first.kernel_times_origin, run_id]
        rows.append(cells)
    return table_html("numbers of every run", heads, rows, [index for index, (key, _) in enumerate(keys) if key in CHOICES])


def break_even_table(loaded):
    if not loaded.break_even:
        return "<p>No sparsifier was compared with a dense baseline.</p>"
    heads = [("sparsifier", False), ("parameters", False), ("density", True), ("platform", False), ("profile", False), ("against", False), ("seed", True), ("break-even n", True), ("faster at n", False), ("slower at n", False)]
    rows = []
    for e in loaded.break_even:
        rows.append([e.sparsifier, "" if e.parameters == "{}" else e.parameters, f"{e.density:.10g}", e.platform, e.profile, e.baseline, str(e.seed),
                     (", ".join(short(p, 4) for p in e.points), repr(e.points[0]) if e.points else ""), ", ".join(map(str, e.wins_at)), ", ".join(map(str, e.loses_at))])
    return table_html("break-even points", heads, rows, (0, 2, 3, 5))


def claims_html(loaded):
    """The claims of the experiment's sources and what became of them; nothing when it states none."""
    outcomes = claims.evaluate(loaded)
    if not outcomes:
        return ""
    heads = [("number", True), ("outcome", False), ("claimed", False), ("ours", True), ("claim", False), ("source", False), ("why it differs", False)]
    rows = [[str(number), one.outcome, one.expected, (short(one.value), repr(one.value) if math.isfinite(one.value) else ""), one.claim, one.source, ". ".join(filter(None, (one.differs_because if one.outcome == "differs" else "", one.left_out)))]
            for number, one in enumerate(outcomes, 1)]
    return (f'<section id="claimed"><h2>Claims</h2>\n<p class="soft">{esc(claims.lines(outcomes)[-1].removeprefix("Claims: "))} What the experiment\'s sources say against these results; '
            f'the figure of the claims has the same numbers.</p>\n{table_html("claims", heads, rows, (1,))}\n</section>\n')


# Provenance

def pairs(value, name=""):
    """(name, text) of everything in a JSON value, names joined by dots."""
    if isinstance(value, dict) and value:
        return [pair for key, item in value.items() for pair in pairs(item, f"{name}.{key}" if name else key)]
    return [(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))]


def provenance(loaded, environment, experiment, reproduce):
    inputs = environment.get("inputs_sha256", {}) if environment else {}
    parts = ["<h3>Inputs</h3>"]
    if isinstance(inputs, dict) and inputs:
        parts.append(table_html("inputs", [("input", False), ("SHA-256", False)], [[str(k), str(v)] for k, v in inputs.items()], filtered=False))
    else:
        parts.append("<p>No environment.json with the inputs' SHA-256 is in this directory.</p>")
    parts.append("<h3>Where the numbers come from</h3>")
    origins = {}
    for row in loaded.rows:
        if row.metric_group == "time":
            origins.setdefault((row.trace, row.counts_origin + ("" if row.validated else ", not validated"), row.expansion, row.kernel_times_origin, row.compute_times_origin, row.network), []).append(row.workers)
    heads = [("trace", False), ("counts", False), ("workers made by", False), ("kernel times", False), ("forward and backward times", False), ("network timed by", False), ("n", False), ("runs", True)]
    parts.append(table_html("origins", heads, [[*key, ", ".join(map(str, sorted(set(ns)))), str(len(ns))] for key, ns in origins.items()], filtered=False))
    if environment:
        rest = [[name, text] for name, text in pairs({k: v for k, v in environment.items() if k not in ("inputs_sha256", "platforms")})]
        parts.append("<h3>Program and machine</h3>" + table_html("environment", [("what", False), ("value", False)], rest, filtered=False))
    if environment and environment.get("platforms"):
        parts.append(f"<details><summary>platforms, with the origin of every number</summary><pre>{esc(json.dumps(environment['platforms'], indent=1, ensure_ascii=False))}</pre></details>")
    if experiment:
        parts.append(f"<details><summary>experiment.json, every default written out</summary><pre>{esc(json.dumps(experiment, indent=1, ensure_ascii=False))}</pre></details>")
    if reproduce:
        parts.append(f"<details><summary>reproduce.sh</summary><pre>{esc(reproduce)}</pre></details>")
    return "\n".join(parts)


def page(directory):
    """The whole report as text."""
    loaded = result_files.load(directory)
    plot.need_matplotlib()
    summary = result_files.read_object(os.path.join(directory, "summary.json"))
    experiment = optional(directory, "experiment.json", result_files.read_object)
    environment = optional(directory, "environment.json", result_files.read_object)
    reproduce = optional(directory, "reproduce.sh", result_files._read_text)
    texts = [source.get(key) for key in ("title", "name") for source in (experiment or {}, summary)]
    title = next((text for text in texts if isinstance(text, str) and text), "Results")
    lines = summary.get("lines", [])
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise result_files.InputError(os.path.join(directory, "summary.json"), "/lines", "a list of texts", result_files.shorten(lines))
    parts = {}
    for name in ("css", "js"):
        with open(os.path.join(PARTS, "report." + name), encoding="utf-8") as file:
            parts[name] = file.read()
    warnings = "".join(f"<li>{esc(line)}</li>" for line in loaded.warnings)
    claimed = claims_html(loaded)
    sections = (("summary", "Summary"), *((("claimed", "Claims"),) if claimed else ()), ("figures", "Figures"), ("numbers", "Numbers"), ("break-even", "Break-even"), ("warnings", "Warnings"), ("provenance", "Provenance"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{esc(title)}</title>
<style>
{parts["css"]}</style>
</head>
<body>
<a class="skip" href="#summary">To the summary</a>
<header>
<h1>{esc(title)}</h1>
<div class="bar"><nav aria-label="Sections"><ul>{"".join(f'<li><a href="#{key}">{text}</a></li>' for key, text in sections)}</ul></nav><button type="button" id="theme">Light / dark</button></div>
</header>
<main>
<section id="summary"><h2>Summary</h2>
<ul>{"".join(f"<li>{esc(line)}</li>" for line in lines) or "<li>summary.json has no lines.</li>"}</ul>
<p class="soft">{len({row.run_id for row in loaded.rows})} runs, {len(loaded.warnings)} warnings. Measured or captured points are solid in the figures, projected ones dashed or dotted and hollow.</p>
</section>
{claimed}<section id="figures"><h2>Figures</h2>
<p class="soft">Point at a mark, or put the focus on a figure and press the left or right arrow key, to see its values. Zoom opens a figure in full size: wheel, + and − zoom, dragging moves, 0 resets, Escape closes.</p>
{figures_html(loaded)}
</section>
<section id="numbers"><h2>Numbers</h2>
<p class="soft">Means over the recorded iterations of every run; a heading sorts by its column.</p>
{runs_table(loaded)}
</section>
<section id="break-even"><h2>Break-even</h2>
<p class="soft">The n at which the iteration times cross, interpolated in log n and log time between the n that were run.</p>
{break_even_table(loaded)}
</section>
<section id="warnings"><h2>Warnings</h2>
{f'<ul class="warnings">{warnings}</ul>' if warnings else "<p>None.</p>"}
</section>
<section id="provenance"><h2>Provenance</h2>
{provenance(loaded, environment, experiment, reproduce)}
</section>
</main>
<dialog id="zoom" aria-labelledby="what"><div class="inside"><div class="bar"><button type="button" id="in">Zoom in</button><button type="button" id="out">Zoom out</button><button type="button" id="home">Reset</button><button type="button" id="close">Close</button><span id="what" class="soft"></span></div><div id="stage" style="display:contents"></div></div></dialog>
<div id="tip" class="tip" hidden></div><div id="dot" class="dot" hidden></div><div id="said" class="heard" aria-live="polite"></div>
<script>
{parts["js"]}</script>
</body>
</html>
"""


def main(arguments=None):
    parser = plot.Arguments(prog="report.py", description="Writes a self-contained HTML report of a result directory.")
    parser.add_argument("directory", metavar="RESULT_DIR")
    parser.add_argument("--out", help="HTML file (default: RESULT_DIR/report.html)")
    options = parser.parse_args(arguments)
    try:
        data = page(options.directory).encode()
        path = options.out or os.path.join(options.directory, "report.html")
        plot.replace(path, lambda temporary: plot.write_bytes(temporary, data))
    except result_files.InputError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 2
    except (plot.Failure, OSError) as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
