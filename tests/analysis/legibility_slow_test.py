"""Legible figures for large and for odd experiments."""
import json
import unittest

from support import LegibilityTest

import fixture

PANELS = ("efficiency", "padding", "density_over_iterations", "selection_time", "traffic", "energy_time", "winner_map")


class Legibility(LegibilityTest):
    def test_two_platforms_six_sparsifiers(self):
        self.assertEqual(self.check_texts(fixture.make(self.path("r"))), 1 + 1 + 2 + 2 + 1 + 2)

    def test_many_densities(self):
        self.assertEqual(self.check_texts(fixture.make(self.path("r"), densities=(0.1, 0.05, 0.01, 0.001, 0.0005), platforms=("hdr-nvlink",)), ("build_up",)), 2 + 5)

    def test_one_of_everything(self):
        self.check_texts(fixture.make(self.path("r"), sparsifiers=("topk",), workers=(8,), platforms=("hdr-nvlink",)))

    def test_every_n_and_long_names(self):
        long = "a_sparsifier_with_quite_a_long_name_$x_{i}"
        self.check_texts(fixture.make(self.path("r"), sparsifiers=("topk", long), workers=tuple(range(2, 20)) + (24, 1024), platforms=("hdr-nvlink",),
                                parameters={"topk": ["{}", json.dumps({"learning_rate": 0.05, "residual": "none", "warm_up_iterations": 100})]}))

    def test_panels_of_large_and_odd_experiments(self):
        long = "a_sparsifier_with_quite_a_long_name_$x_{i}"
        self.check_texts(fixture.make(self.path("a"), sparsifiers=("topk", long), workers=tuple(range(2, 20)) + (24, 1024), densities=(0.1, 0.001), runs=True,
                                      parameters={"topk": ["{}", json.dumps({"learning_rate": 0.05, "residual": "none", "warm_up_iterations": 100})]}), PANELS,
                         (("double", 7.0), ("single", 3.3), ("ieee-single", 3.5), ("ieee-double", 7.16)))
        self.check_texts(fixture.make(self.path("b"), sparsifiers=("topk",), workers=(8,), platforms=("hdr-nvlink",), runs=True), PANELS[:-1])
        self.check_texts(fixture.make(self.path("c"), runs=True), ("build_up", "breakdown", "speed_up") + PANELS,
                         (("ieee-single", 3.5), ("ieee-double", 7.16), ("acm-single", 3.33), ("acm-double", 7.0)))


if __name__ == "__main__":
    unittest.main()
