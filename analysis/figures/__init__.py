"""The figures, one module each, and the registry.

A figure module has `draw(results, style)` with style "single" or "double". It returns a list of Drawing: one for every file that the
experiment needs (none when the results hold nothing to draw). A new figure is a module and a line in REGISTRY.
"""
import importlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    name: str
    title: str
    description: str

    def draw(self, results, style):
        """Imports the figure's module only now, so that listing the figures needs no matplotlib."""
        return importlib.import_module("analysis.figures." + self.name).draw(results, style)


@dataclass(frozen=True)
class Drawing:
    """`name` is the file name without its ending; `table` holds exactly what is drawn, one dict per point with the keys `columns`."""
    name: str
    figure: object
    columns: tuple
    table: list = field(repr=False)
    caption: str = field(repr=False)


REGISTRY = (
    Entry("build_up", "Build-up and density", "Gradient build-up U/k and actual density U/N against the number of workers n"),
    Entry("breakdown", "Iteration-time breakdown",
          "Iteration time by phase, one stacked bar for every sparsifier at every number of workers n"),
    Entry("speed_up", "Speed-up and break-even",
          "Speed-up against the number of workers n, with the dense baselines and the break-even points"),
)
