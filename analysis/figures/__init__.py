"""The figures, one module each, and the registry.

A figure module has `draw(results, style)` with a preset of analysis/style.py. It returns a list of Drawing: one for every file that the
experiment needs (none when the results hold nothing to draw; NotApplicable says why). A new figure is a module and a line in REGISTRY.
"""
import importlib
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Entry:
    name: str
    title: str
    description: str

    def draw(self, results, style):
        """The figure's drawings, their captions with the warnings of the results: a caption travels further than summary.json. Imports the
        figure's module only now, so that listing the figures needs no matplotlib."""
        from analysis import caption

        drawings = importlib.import_module("analysis.figures." + self.name).draw(results, style)
        return [replace(drawing, caption=caption.join(drawing.caption.rstrip("\n"), caption.warnings(results))) for drawing in drawings]


class NotApplicable(Exception):
    """These results cannot make this figure: what it needs, and what there is instead."""

    def __init__(self, expected, found):
        super().__init__(f"needs {expected}, found {found}")
        self.expected, self.found = expected, found


@dataclass(frozen=True)
class Drawing:
    """`name` is the file name without its ending; `table` holds exactly what is drawn, one dict per point with the keys `columns`.
    `recipe` (panels, curves, legends) is what analysis/standalone.py needs for the script that draws the figure again from its CSV."""
    name: str
    figure: object
    columns: tuple
    table: list = field(repr=False)
    caption: str = field(repr=False)
    recipe: dict = field(repr=False)


REGISTRY = (
    Entry("build_up", "Build-up and density", "Gradient build-up U/k and actual density U/N against the number of workers n"),
    Entry("breakdown", "Iteration-time breakdown",
          "Iteration time by phase, one stacked bar for every sparsifier at every number of workers n"),
    Entry("speed_up", "Speed-up and break-even",
          "Speed-up against the number of workers n, with the dense baselines and the break-even points"),
    Entry("efficiency", "Scaling efficiency", "Speed-up over n against the number of workers n, with the dense baselines and the break-even points"),
    Entry("overlap", "Hidden and exposed communication", "One iteration of every timeline as strips of computing and communicating, and the shares of both at every n"),
    Entry("padding", "Padding of the all-gather", "Padding n max k_i / sum k_i against the number of workers n and over the iterations"),
    Entry("density_over_iterations", "Threshold and density over the iterations", "Selection threshold and actual density U/N in every recorded iteration"),
    Entry("selection_time", "Selection time", "Time of the selection kernels against the number of workers n"),
    Entry("traffic", "Traffic", "Bytes that a worker sends in an iteration against the number of workers n"),
    Entry("link_traffic", "Traffic by class of links", "Bytes that an iteration moves over device links, NICs and the network's links, per worker, against the number of workers n"),
    Entry("energy_time", "Fidelity and time", "Share of the gradients' energy that is exchanged against the iteration time, with the Pareto front"),
    Entry("winner_map", "Map of the fastest exchange", "Which exchange has the shortest iteration, over n and the bandwidth of the NICs, n and platforms or n and densities"),
    Entry("claims", "Claims of the sources", "Numbers that the experiment's sources give against those of the results, with the tolerance of each"),
)
