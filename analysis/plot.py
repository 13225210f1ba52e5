#!/usr/bin/env python3
"""Draws the figures of a result directory into RESULT_DIR/figures/: NAME.pdf, NAME.svg, NAME.png, NAME.csv (exactly what is drawn),
NAME.txt (the caption) and NAME.py (a script that draws it again from the CSV); and RESULT_DIR/tables/*.tex. Exit status: 0 done, 1 the figures could not be made, 2 wrong input or usage."""
import argparse
import csv
import io
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.dont_write_bytecode = True

from analysis import manifest  # noqa: E402
from analysis import results as result_files  # noqa: E402
from analysis.figures import REGISTRY, NotApplicable  # noqa: E402

FORMATS = ("pdf", "svg", "png")
# The presets of analysis/style.py, which needs matplotlib.
STYLES = ("single", "double", "ieee-single", "ieee-double", "acm-single", "acm-double")
OLDEST_MATPLOTLIB = (3, 6)


class Failure(Exception):
    """Right input, but the figures cannot be made; str() is the line the user sees."""


class Arguments(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"sparscale: {message} ({self.prog} --help explains)\n")


def formats(text):
    chosen = text.split(",")
    for one in chosen:
        if one not in FORMATS:
            raise argparse.ArgumentTypeError(f"expected formats out of {','.join(FORMATS)}, found {one!r}")
    return list(dict.fromkeys(chosen))


def parse(arguments):
    names = [entry.name for entry in REGISTRY]
    parser = Arguments(prog="plot.py", description="Draws the figures of a result directory.",
                       epilog="Example: plot.py results/scaling --figure build_up --figure speed_up --format pdf --style single")
    parser.add_argument("directory", metavar="RESULT_DIR", nargs="?")
    parser.add_argument("--figure", metavar="NAME", action="append", choices=names, help="draw this figure only; may be repeated")
    parser.add_argument("--format", type=formats, default=list(FORMATS), help="pdf, svg, png or several joined by commas (default: all)")
    parser.add_argument("--style", choices=STYLES, default="double",
                        help="single column (3.3 in) or double (7 in, default), or the widths and fonts of IEEE or ACM: " + ", ".join(STYLES[2:]))
    parser.add_argument("--quiet", action="store_true", help="do not print the paths of the written files")
    parser.add_argument("--list", action="store_true", help="print the figures as JSON and end")
    options = parser.parse_args(arguments)
    if not options.list and options.directory is None:
        parser.error("expected a RESULT_DIR, found nothing")
    return options


def need_matplotlib():
    try:
        import matplotlib
        import numpy  # noqa: F401
    except ImportError as error:
        raise Failure(f"figures need matplotlib 3.6 or newer for {sys.executable}: {error}") from None
    if tuple(int(part) for part in matplotlib.__version__.split(".")[:2]) < OLDEST_MATPLOTLIB:
        raise Failure(f"figures need matplotlib 3.6 or newer, found {matplotlib.__version__}")


def replace(path, write):
    """Writes through a temporary name, so that no half-written file is left under the real one."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def write_bytes(path, data):
    with open(path, "wb") as file:
        file.write(data)


def cell(value):
    """A number with as many digits as it has; nothing for None and NaN."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def table(drawing):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(drawing.columns)
    for row in drawing.table:
        writer.writerow([cell(row.get(column)) for column in drawing.columns])
    return text.getvalue().encode()


def save(drawing, name, directory, chosen, style_name):
    """Writes the files of one drawing; returns {path relative to the result directory: digest of the drawing}."""
    from analysis import standalone, style

    base = os.path.join(directory, "figures", name)
    data = {"csv": table(drawing), "txt": drawing.caption.encode(), "py": standalone.script(drawing, name).encode()}
    for one in chosen:
        replace(f"{base}.{one}", lambda path: style.save(drawing.figure, path, one))
    for ending, text in data.items():
        replace(f"{base}.{ending}", lambda path: write_bytes(path, text))
    digest = manifest.digest(style_name, *data.values())
    return {f"figures/{name}.{ending}": digest for ending in (*chosen, *data)}


def run(options):
    """Draws what was asked for; returns the written files."""
    loaded = result_files.load(options.directory)
    need_matplotlib()
    from analysis import files, style

    wanted = [entry for entry in REGISTRY if not options.figure or entry.name in options.figure]
    before, drawn, empty = manifest.load(options.directory), {}, {}
    for entry in wanted:
        style.reset(options.style)
        try:
            drawings = entry.draw(loaded, options.style)
            if not drawings:
                raise NotApplicable("rows of its metric group", "none")
        except NotApplicable as reason:
            empty[entry.name] = reason
            continue
        os.makedirs(os.path.join(options.directory, "figures"), exist_ok=True)
        drawn[entry.name] = {}
        for drawing, name in zip(drawings, files.unique([drawing.name for drawing in drawings])):
            drawn[entry.name].update(save(drawing, name, options.directory, options.format, options.style))
    if empty and (options.figure or not drawn):
        name, reason = next(iter(empty.items()))
        raise result_files.InputError(loaded.table_file, "", f"{reason.expected} for the figure {name}", reason.found)
    if not options.figure:
        from analysis import latex

        drawn["tables"] = {}
        for name, text in latex.tables(loaded):
            os.makedirs(os.path.join(options.directory, "tables"), exist_ok=True)
            path = f"tables/{name}.tex"
            replace(os.path.join(options.directory, path), lambda temporary: write_bytes(temporary, text.encode()))
            drawn["tables"][path] = manifest.digest("", text.encode())
    # Of a figure that is no longer part of the program nothing can be said: its files go when all are drawn.
    replaced = {entry.name for entry in wanted} if options.figure else {entry.name for entry in REGISTRY} | {"tables"} | set(before)
    os.makedirs(os.path.join(options.directory, "figures"), exist_ok=True)
    text, removed = manifest.update(options.directory, before, drawn, replaced)
    replace(os.path.join(options.directory, "figures", manifest.NAME), lambda path: write_bytes(path, text))
    written = [os.path.join(options.directory, *path.split("/")) for files_of in drawn.values() for path in files_of]
    if removed and not options.quiet:
        print(f"sparscale: removed {len(removed)} files of an earlier call that these results do not have: {', '.join(removed[:4])}"
              + (", ..." if len(removed) > 4 else ""), file=sys.stderr)
    for name, reason in empty.items():
        if not options.quiet:
            print(f"sparscale: {name} is not drawn: it {reason}", file=sys.stderr)
    return written


def main(arguments=None):
    options = parse(arguments)
    if options.list:
        print(json.dumps([{"name": e.name, "title": e.title, "description": e.description} for e in REGISTRY], indent=2))
        return 0
    try:
        written = run(options)
        if not options.quiet:
            print("\n".join(written))
    except result_files.InputError as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 2
    except (Failure, OSError) as error:
        print(f"sparscale: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
