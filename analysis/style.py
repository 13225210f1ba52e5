"""How every figure looks: colours, markers, fonts, layout in inches, and files whose bytes depend on the input only.

Captured counts are drawn solid with filled markers, projected ones dashed with hollow markers, those beyond the validated range dotted
on a shaded ground.
"""
import functools
import json
import math
import zlib
from dataclasses import dataclass, replace

import matplotlib

matplotlib.use("Agg")
from matplotlib import font_manager, ticker  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402

# Width in inches, font, size of texts and of axis labels in points. IEEE's columns are 21 pc and 43 pc wide and set in Times, which STIX
# resembles; ACM's (acmart, sigconf) are 241 pt and 506 pt wide. Fonts are those that matplotlib brings along.
PRESETS = {"single": (3.3, "DejaVu Sans", 7.0, 8.0), "double": (7.0, "DejaVu Sans", 7.0, 8.0),
           "ieee-single": (3.5, "STIXGeneral", 8.0, 9.0), "ieee-double": (7.16, "STIXGeneral", 8.0, 9.0),
           "acm-single": (3.33, "DejaVu Sans", 7.0, 8.0), "acm-double": (7.0, "DejaVu Sans", 7.0, 8.0)}
WIDTH_IN = {name: preset[0] for name, preset in PRESETS.items()}
# Those of the preset that reset() was last called with.
FONT, TEXT_PT, LABEL_PT = PRESETS["double"][1:]
PNG_DPI = 300

# Okabe and Ito, Color Universal Design (2008).
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
GREY = "#7F7F7F"
SHADE = "#EDEDED"

LINE_STYLE = {"captured": "-", "projected": (0, (4, 1.6)), "unvalidated": (0, (1, 1.3))}


@dataclass(frozen=True)
class Look:
    label: str
    colour: str
    marker: str
    hatch: str


# Name, label, colour, marker, hatch. A row is never changed, so that a sparsifier looks the same in every figure of every paper.
_KNOWN = {name: Look(label, colour, marker, hatch) for name, label, colour, marker, hatch in (
    ("dense", "dense fp32", BLACK, "s", ""),
    ("dense_fp16", "dense fp16", GREY, "D", "..."),
    ("topk", "Top-k", VERMILLION, "o", "///"),
    ("hard_threshold", "hard threshold", ORANGE, "v", "\\\\\\"),
    ("sage", "SAGE", PURPLE, "^", "xxx"),
    ("deft", "DEFT", SKY, "s", "|||"),
    ("micro", "MiCRO", GREEN, "D", "---"),
    ("exdyna", "ExDyna", BLUE, "P", "+++"),
    ("cltk", "CLT-k", ORANGE, "X", "ooo"),
    ("global_topk", "global Top-k", BLACK, "o", "OOO"),
    ("gtopk", "gTop-k", VERMILLION, "X", "//"),
    ("random_k", "random-k", GREY, "P", ".."),
    ("dgc", "DGC", PURPLE, "v", "xx"),
    ("gaussiank", "Gaussian-k", SKY, "^", "||"),
    ("sidco", "SIDCo", GREEN, "o", "--"),
    ("accordion", "Accordion", BLUE, "v", "++"),
    ("oktopk", "Ok-Topk", GREEN, "X", "\\\\"),
    ("topk_dsa", "TopkDSA", VERMILLION, "^", "|-"),
    ("omnireduce", "OmniReduce", BLUE, "s", "oo"),
    ("grace_topk", "GRACE Top-k", VERMILLION, "D", "/"),
    ("grace_threshold", "GRACE threshold", ORANGE, "s", "\\"),
)}
# For sparsifiers that are not listed: markers no listed one has, chosen by the name alone.
_OTHER_MARKERS = ("<", ">", "p", "h", "*", "d", "8")
_OTHER_COLOURS = (VERMILLION, ORANGE, PURPLE, SKY, GREEN, BLUE, BLACK)
_OTHER_HATCHES = ("////", "\\\\\\\\", "xxxx", "||||", "----", "++++", "....")
_VARIANT_SHADES = (0.0, -0.35, 0.35, -0.6, 0.55)


def look(sparsifier):
    """Label, colour, marker and hatch of a sparsifier: from its name only."""
    if sparsifier in _KNOWN:
        return _KNOWN[sparsifier]
    number = zlib.crc32(sparsifier.encode())
    pick = number % (len(_OTHER_COLOURS) * len(_OTHER_MARKERS))
    return Look(plain(sparsifier), _OTHER_COLOURS[pick % 7], _OTHER_MARKERS[pick // 7], _OTHER_HATCHES[pick // 7])


def plain(text):
    """Text that matplotlib draws as it is ($ would start a formula)."""
    return text.replace("$", r"\$")


def order(series_list):
    """Series in the order in which figures show them: baselines, then listed sparsifiers, then others by name; variants by parameters."""
    names = list(_KNOWN)
    return sorted(series_list, key=lambda s: (names.index(s[0]) if s[0] in _KNOWN else len(names), s[0], s[1] != "{}", s[1]))


def looks(series_list):
    """Look of every series (sparsifier, parameters). Variants of a sparsifier share its marker and get darker and lighter colours; their
    labels name their parameters."""
    result = {}
    for series in order(series_list):
        base = look(series[0])
        variants = [s for s in order(series_list) if s[0] == series[0]]
        shade = _VARIANT_SHADES[variants.index(series) % len(_VARIANT_SHADES)]
        rgb = to_rgb(base.colour)
        target = 0.0 if shade < 0 else 1.0
        colour = tuple(c + (target - c) * abs(shade) for c in rgb) if shade else base.colour
        label = base.label
        # Only what tells variants apart stands in the label; the caption has all parameters.
        own = {s: json.loads(s[1]) for s in variants}
        telling = [key for key, value in own[series].items() if any(key not in other or other[key] != value for other in own.values())]
        if telling:
            label += plain(" (" + ", ".join(f"{key} = {json.dumps(own[series][key], ensure_ascii=False)}" for key in telling) + ")")
        result[series] = Look(label, colour, base.marker, base.hatch)
    return result


def fit(looks_, width_in):
    """The same looks with labels cut to a width; cut ones get a number, so that they stay apart."""
    result = {}
    for series, one in looks_.items():
        label = one.label
        if text_width(label) > width_in:
            tail = f"… {len(result) + 1}"
            while label and text_width(label + tail) > width_in:
                label = label[:-1]
            label = label.rstrip("\\ ") + tail
        result[series] = replace(one, label=label)
    return result


def wide(preset):
    """Whether a preset is for both columns of a page."""
    return preset.endswith("double")


def reset(preset="double"):
    """Sets every matplotlib parameter and the fonts of a preset, so that a user's matplotlibrc changes nothing."""
    global FONT, TEXT_PT, LABEL_PT
    FONT, TEXT_PT, LABEL_PT = PRESETS[preset][1:]
    text_width.cache_clear()
    matplotlib.rcdefaults()
    matplotlib.rcParams.update({
        "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "sparscale",
        "font.family": FONT, "mathtext.fontset": "dejavusans" if FONT == "DejaVu Sans" else "stix", "font.size": TEXT_PT,
        "axes.labelsize": LABEL_PT, "axes.titlesize": LABEL_PT, "xtick.labelsize": TEXT_PT, "ytick.labelsize": TEXT_PT,
        "legend.fontsize": TEXT_PT, "axes.linewidth": 0.6, "lines.linewidth": 1.1, "lines.markersize": 4.0,
        "hatch.linewidth": 0.5, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4,
        "ytick.minor.width": 0.4, "xtick.major.size": 3, "ytick.major.size": 3, "xtick.minor.size": 1.8, "ytick.minor.size": 1.8,
        "axes.grid": False, "axes.axisbelow": True, "legend.frameon": False, "path.simplify": False,
    })


class Sheet:
    """A figure of fixed width laid out in inches from the top: legends first, then boxes of axes. Nothing moves on its own.

    `blocks` are lists of legend handles; every block starts a new line and has as many columns as fit.
    """

    EDGE = 0.05
    BETWEEN = 0.05

    def __init__(self, style, height_in, blocks):
        self.width = WIDTH_IN[style]
        self.figure = Figure(figsize=(self.width, 1.0))
        FigureCanvasAgg(self.figure)
        blocks = [block for block in blocks if block]
        sizes = [self._legend_size(block) for block in blocks]
        self.top = self.EDGE + sum(height + self.BETWEEN for _, height in sizes)
        self.height = self.top + height_in
        self.figure.set_size_inches(self.width, self.height)
        down = self.EDGE
        self.legends = []  # (handles, columns, top) of every block, for the script that draws the figure again
        for block, (columns, height) in zip(blocks, sizes):
            self._legend(block, columns, 1 - down / self.height)
            self.legends.append((self._by_row(block, columns), columns, 1 - down / self.height))
            down += height + self.BETWEEN

    def _legend(self, handles, columns, top):
        return self.figure.legend(handles=self._by_row(handles, columns), loc="upper center", ncol=columns, bbox_to_anchor=(0.5, top), borderaxespad=0,
                                  borderpad=0, columnspacing=1.1, handletextpad=0.5, handlelength=2.4, labelspacing=0.35)

    def _legend_size(self, handles):
        """The columns that need the fewest lines and fit, and the legend's height in inches."""
        renderer = self.figure.canvas.get_renderer()
        for lines in range(1, len(handles) + 1):
            columns = math.ceil(len(handles) / lines)
            legend = self._legend(handles, columns, 1)
            box = legend.get_window_extent(renderer)
            width, height = box.width / self.figure.dpi, box.height / self.figure.dpi
            legend.remove()
            if width <= self.width - 2 * self.EDGE or columns == 1:
                return columns, height
        raise AssertionError("a legend has at least one column")

    @staticmethod
    def _by_row(handles, columns):
        """matplotlib fills a legend column by column; readers read it row by row. Its first columns take the remainder."""
        return [handle for column in range(columns) for handle in handles[column::columns]]

    def axes(self, left, top, width, height, **options):
        """Axes whose box starts `left` from the left and `top` below the legend, in inches."""
        bottom = self.height - self.top - top - height
        return self.figure.add_axes([left / self.width, bottom / self.height, width / self.width, height / self.height], **options)


def workers_axis(axes, workers, width_in, labelled=True):
    """log2 axis of n with a tick at every n that was run; labels where they fit, powers of two first."""
    axes.set_xscale("log", base=2)
    low, high = min(workers), max(workers)
    margin = 2 ** 0.35 if low == high else (high / low) ** 0.04
    limits = (low / margin, high * margin)
    axes.set_xlim(*limits)
    span = math.log(limits[1] / limits[0])
    places, kept = {n: math.log(n / limits[0]) / span * width_in for n in workers}, []
    half = {n: 0.03 * len(str(n)) + 0.03 for n in workers}
    for n in sorted(workers, key=lambda n: (n & (n - 1) != 0, n)):
        if all(abs(places[n] - places[m]) >= half[n] + half[m] for m in kept):
            kept.append(n)
    axes.xaxis.set_major_locator(ticker.FixedLocator(workers))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: str(round(x)) if labelled and round(x) in kept else ""))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def log_ticks(low, high, base=10):
    """Labelled and unlabelled ticks of a log axis over [low, high]; between decades 2 and 5 are labelled when few decades are shown."""
    decades = math.log10(high / low)
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    if base == 2 and last - first >= 2:
        step = max(1, math.ceil((last - first + 1) / 9))
        ticks, minor = [2.0 ** e for e in range(first, last + 1, step)], []
    else:
        exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        steps = (1,) if decades > 2.2 else (1, 2, 5) if decades > 0.6 else (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8)
        every = max(1, math.ceil(decades / 8))
        ticks = [s * 10.0 ** e for e in exponents if e % every == 0 for s in steps if low <= s * 10.0 ** e <= high]
        minor = [s * 10.0 ** e for e in exponents for s in range(2, 10) if low <= s * 10.0 ** e <= high] if every == 1 else []
    return ticks, minor


def tick_label(value):
    return f"{value:.6g}" if 1e-4 <= value < 1e6 else f"{value:.0e}"


def tick_width(low, high, base=10):
    """Width in inches of the widest label that log_axis makes."""
    return max((text_width(tick_label(tick)) for tick in log_ticks(low, high, base)[0]), default=0.0)


def log_axis(axis, low, high, base=10):
    """Log axis over [low, high] with plain numbers as labels."""
    ticks, minor = log_ticks(low, high, base)
    axis.set_major_locator(ticker.FixedLocator(ticks))
    axis.set_minor_locator(ticker.FixedLocator(minor))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick_label(value)))
    axis.set_minor_formatter(ticker.NullFormatter())


def limits(values, margin=1.15):
    """Lowest and highest of the positive values with a margin, None when there are none."""
    positive = [v for v in values if v is not None and math.isfinite(v) and v > 0]
    return (min(positive) / margin, max(positive) * margin) if positive else None


def shade_beyond(axes, validated_up_to):
    """Shades the range of n in which expansion was never compared with captured workers."""
    if validated_up_to is not None:
        low, high = axes.get_xlim()
        axes.axvspan(max(low, validated_up_to), high, facecolor=SHADE, edgecolor="none", zorder=0, label="_shade")


_RANK = {"captured": 0, "projected": 1, "unvalidated": 2}


def curve(axes, points, look_, zorder=3.0):
    """One series. `points`: (x, y, low, high, status), y NaN where there is nothing; a piece between two points has the style of the less
    certain one; low and high make the band (None: no band)."""
    drawn = [(x, y, low, high, status) for x, y, low, high, status in points]
    band = [(x, low, high) for x, y, low, high, _ in drawn if low is not None and all(map(math.isfinite, (y, low, high)))]
    if len(band) > 1:
        axes.fill_between([b[0] for b in band], [max(b[1], 1e-300) for b in band], [b[2] for b in band], facecolor=look_.colour, alpha=0.16,
                          edgecolor="none", linewidth=0, zorder=zorder - 1.5)
    elif len(band) == 1:
        axes.plot([band[0][0]] * 2, [max(band[0][1], 1e-300), band[0][2]], color=look_.colour, linewidth=3.5, alpha=0.25, solid_capstyle="butt",
                  zorder=zorder - 1.5)
    for a, b in zip(drawn, drawn[1:]):
        if math.isfinite(a[1]) and math.isfinite(b[1]):
            status = max(a[4], b[4], key=_RANK.get)
            axes.plot([a[0], b[0]], [a[1], b[1]], color=look_.colour, linestyle=LINE_STYLE[status], zorder=zorder, dash_capstyle="butt")
    for filled in (True, False):
        here = [(x, y) for x, y, _, _, status in drawn if math.isfinite(y) and (status == "captured") == filled]
        if here:
            axes.plot(*zip(*here), linestyle="none", marker=look_.marker, color=look_.colour, markerfacecolor=look_.colour if filled else "white",
                      markeredgewidth=0.9, zorder=zorder + 0.5)


def series_handle(look_):
    """Legend entry of a series."""
    return Line2D([], [], color=look_.colour, marker=look_.marker, label=look_.label, markeredgewidth=0.9)


def status_handles(statuses, captured_workers):
    """Legend entries for the line styles that occur."""
    labels = {"captured": f"captured ({captured_range(captured_workers)})", "projected": "projected (n > W)",
              "unvalidated": "not validated (shaded)"}
    handles = []
    for status in ("captured", "projected", "unvalidated"):
        if status in statuses:
            handles.append(Line2D([], [], color=GREY, linestyle=LINE_STYLE[status], marker="o",
                                  markerfacecolor=GREY if status == "captured" else "white", label=labels[status]))
    return handles


def captured_range(captured_workers):
    return f"n ≤ W = {captured_workers}"


@functools.lru_cache(maxsize=None)
def text_width(label):
    """Width in inches of a label in the smallest size of text."""
    dpi = 720
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=FONT)))
    font.set_size(TEXT_PT, dpi)
    font.set_text(label.replace(r"\$", "$"), 0.0)
    return font.get_width_height()[0] / 64 / dpi


def save(figure, path, file_format):
    """Writes a figure; the bytes depend on the figure and on matplotlib's version only."""
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}[file_format]
    figure.savefig(path, format=file_format, dpi=PNG_DPI if file_format == "png" else 72, metadata=metadata)
