"""What the tests of the figures share: where things are, how plot.py is run, how a figure's texts are looked at."""
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PLOT = os.path.join(ROOT, "analysis", "plot.py")
sys.path[:0] = [HERE, ROOT]


class DirectoryTest(unittest.TestCase):
    """A test with a directory of its own."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def path(self, *parts):
        return os.path.join(self.directory, *parts)


def plot(*arguments):
    """Runs plot.py's main here: exit status, stdout, stderr. Much faster than a process each time."""
    from analysis import plot as program

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = program.main(list(arguments))
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()


def plot_process(*arguments, python=sys.executable, **environment):
    return subprocess.run([python, "-B", PLOT, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment})


def drawings(directory, name, style_name):
    from analysis import results, style
    from analysis.figures import REGISTRY

    style.reset(style_name)
    return next(entry for entry in REGISTRY if entry.name == name).draw(results.load(directory), style_name)


def texts(figure):
    """Visible texts of a figure with their boxes in inches, and the figure's size in inches."""
    from matplotlib.text import Text

    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    # Ticks outside the limits, and ticks that matplotlib keeps in reserve, have a text that is never drawn.
    hidden = set()
    for axes in figure.axes:
        frame = [value / figure.dpi for value in axes.get_window_extent(renderer).extents]
        for axis, low, high in ((axes.xaxis, frame[0], frame[2]), (axes.yaxis, frame[1], frame[3])):
            shown = set(axis.get_ticklabels(which="both"))
            for tick in axis.majorTicks + axis.minorTicks:
                box = tick.label1.get_window_extent(renderer)
                middle = (box.x0 + box.x1 if axis is axes.xaxis else box.y0 + box.y1) / 2 / figure.dpi
                if tick.label1 not in shown or not low - 0.03 <= middle <= high + 0.03:
                    hidden.add(tick.label1)
    drawn = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            box = text.get_window_extent(renderer)
            drawn.append((text, [value / figure.dpi for value in (box.x0, box.y0, box.x1, box.y1)]))
    return drawn, figure.get_size_inches()


SLACK_IN = 0.005  # rounding of text boxes


class LegibilityTest(DirectoryTest):
    """No text is cut off, lies on another or is smaller than 7 pt, in both widths."""

    def check_texts(self, directory, names=("build_up", "breakdown", "speed_up"), styles=(("double", 7.0), ("single", 3.3))):
        checked = 0
        for name in names:
            for style_name, width in styles:
                for drawing in drawings(directory, name, style_name):
                    found, size = texts(drawing.figure)
                    self.assertEqual(size[0], width)
                    self.assertLess(size[1], 30)
                    self.assertGreater(len(found), 5)
                    for text, box in found:
                        where = f"{drawing.name} {style_name}: {text.get_text()!r}"
                        self.assertGreaterEqual(text.get_fontsize(), 7, where)
                        self.assertGreaterEqual(box[0], -SLACK_IN, where)
                        self.assertGreaterEqual(box[1], -SLACK_IN, where)
                        self.assertLessEqual(box[2], size[0] + SLACK_IN, where)
                        self.assertLessEqual(box[3], size[1] + SLACK_IN, where)
                    for i, (text, a) in enumerate(found):
                        for other, b in found[:i]:
                            apart = a[2] <= b[0] + SLACK_IN or b[2] <= a[0] + SLACK_IN or a[3] <= b[1] + SLACK_IN or b[3] <= a[1] + SLACK_IN
                            # Boxes of text have a little air above and below the letters.
                            overlap = min(a[3], b[3]) - max(a[1], b[1])
                            self.assertTrue(apart or overlap < 0.03, f"{drawing.name} {style_name}: {text.get_text()!r} lies on {other.get_text()!r}")
                    checked += 1
        return checked
