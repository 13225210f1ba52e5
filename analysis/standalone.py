"""The script NAME.py that is written beside a figure and draws it again from NAME.csv alone: what a figure looks like is read from the
matplotlib figure, what it shows from the CSV file."""
import json
import os

from matplotlib.colors import to_hex
from matplotlib.patches import Patch

from analysis import style

TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standalone_template.py")


def panel(axes, where, kind="curves", **more):
    """A panel of a recipe: its axes, the cells of the CSV's rows that it shows, and for curves the columns x, y, low and high."""
    return {"axes": axes, "where": where, "kind": kind, "more": more}


def curve(where, look=None, colour=None, line="-", marker=None):
    """A curve of a recipe: the look of a series, or for a reference line its colour and line style."""
    if look is not None:
        return {"where": where, "colour": to_hex(look.colour), "marker": look.marker, "line": line, "size": 4}
    return {"where": where, "colour": to_hex(colour), "line": line, **({"marker": marker, "size": 8} if marker else {})}


def series_curves(looks, **where):
    return [curve({"sparsifier": name, "parameters": text, **where}, look) for (name, text), look in looks.items()]


def _axes(one):
    axes, figure = one["axes"], one["axes"].figure
    box = axes.get_position()
    result = {"kind": one["kind"], "where": one["where"], "box": [round(v, 5) for v in (box.x0, box.y0, box.width, box.height)],
              "title": axes.get_title(), "xlabel": axes.get_xlabel(), "ylabel": axes.get_ylabel(), "shades": [], **one["more"]}
    for letter, axis, limits, scale in (("x", axes.xaxis, axes.get_xlim(), axes.get_xscale()), ("y", axes.yaxis, axes.get_ylim(), axes.get_yscale())):
        ticks = [float(tick) for tick in axis.get_majorticklocs() if min(limits) * (1 - 1e-9) <= tick <= max(limits) * (1 + 1e-9) or scale == "linear"
                 and min(limits) <= tick <= max(limits)]
        shown = axis.get_major_ticks()[0].label1.get_visible() if len(axis.get_major_ticks()) else True
        labels = axis.get_major_formatter().format_ticks(ticks) if shown else [""] * len(ticks)
        result.update({letter + "lim": [float(v) for v in limits], letter + "scale": scale, letter + "ticks": ticks, letter + "ticklabels": labels})
    for patch in axes.patches:
        if patch.get_label() == "_shade":
            xs = patch.get_xy()[:, 0] if hasattr(patch.get_xy(), "shape") else [patch.get_x(), patch.get_x() + patch.get_width()]
            result["shades"].append([float(min(xs)), float(max(xs))])
    del figure
    return result


def _handle(one):
    if isinstance(one, Patch):
        return {"kind": "patch", "label": one.get_label(), "colour": to_hex(one.get_facecolor()) if one.get_facecolor()[3] else "none", "hatch": one.get_hatch() or ""}
    line = one.get_linestyle()
    dashes = getattr(one, "_unscaled_dash_pattern", (0, None))
    if line == "--" and dashes[1]:
        line = [dashes[0], list(dashes[1])]
    colour = one.get_color()
    return {"kind": "line", "label": one.get_label(), "colour": "none" if colour == "none" else to_hex(colour),
            "marker": str(one.get_marker()), "line": line if line != "None" else "none", "size": one.get_markersize(),
            "face": to_hex(one.get_markerfacecolor()) if one.get_markerfacecolor() != "none" else "none",
            "edge": to_hex(one.get_markeredgecolor()) if one.get_markeredgecolor() != "none" else "none"}


def script(drawing, name):
    """Text of NAME.py for a drawing with a recipe."""
    figure, sheet = drawing.figure, drawing.recipe.get("legends", [])
    spec = {"size_in": [round(float(v), 4) for v in figure.get_size_inches()], "font": style.FONT, "text_pt": style.TEXT_PT, "label_pt": style.LABEL_PT,
            "panels": [_axes(one) for one in drawing.recipe["panels"]], "curves": drawing.recipe.get("curves", []),
            "legends": [{"handles": [_handle(one) for one in handles], "columns": columns, "top": round(top, 5)} for handles, columns, top in sheet],
            "texts": [{"x": text.get_position()[0], "y": text.get_position()[1], "text": text.get_text(), "ha": text.get_ha(), "va": text.get_va(), "size": text.get_fontsize()}
                      for text in figure.texts]}
    with open(TEMPLATE, encoding="utf-8") as file:
        text = file.read()
    # JSON has no triple quotes, and what is escaped in it stays escaped in a raw string.
    return text.replace("@SPEC@", json.dumps(spec, indent=1, ensure_ascii=False)).replace("@NAME@", name)
