"""The figures: right numbers, legible, honest, the same bytes every time."""
import csv
import json
import math
import os
import subprocess
import sys
import unittest

from support import DirectoryTest, LegibilityTest, PLOT, drawings, plot, plot_process

import fixture

def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lines_of(axes, colour):
    from matplotlib.colors import same_color

    return [line for line in axes.lines if same_color(line.get_color(), colour)]


class Legibility(LegibilityTest):
    def test_two_platforms(self):
        self.assertEqual(self.check_texts(fixture.make(self.path("r"), workers=(2, 16, 64, 256), sparsifiers=("topk", "hard_threshold", "exdyna"))), 9)


class Numbers(DirectoryTest):
    def test_build_up_draws_the_table_and_the_table_is_the_results(self):
        directory = fixture.make(self.path("r"))
        drawing, = drawings(directory, "build_up", "double")
        truth = {(r["sparsifier"], int(r["workers"])): r for r in rows(os.path.join(directory, "results.csv"))
                 if r["metric_group"] == "selection" and r["platform"] == "hdr-nvlink"}
        from analysis import style

        for panel, column, axes in (("build_up", "build_up", drawing.figure.axes[0]), ("density", "actual_density", drawing.figure.axes[1])):
            for name in fixture.SPARSIFIERS:
                table = [r for r in drawing.table if r["panel"] == panel and r.get("sparsifier") == name]
                self.assertEqual([r["workers"] for r in table], list(fixture.WORKERS))
                for r in table:
                    for key, quantity in (("value", "mean"), ("p05", "p05"), ("p95", "p95")):
                        self.assertEqual(r[key], float(truth[name, r["workers"]][f"{column}_{quantity}"]))
                drawn = {}
                for line in lines_of(axes, style.look(name).colour):
                    if line.get_marker() not in ("None", None, ""):
                        drawn.update(zip(line.get_xdata(), line.get_ydata()))
                self.assertEqual(drawn, {r["workers"]: r["value"] for r in table})
            self.assertEqual([t for t in axes.get_xticks()], list(fixture.WORKERS))
            self.assertEqual([t.get_text() for t in axes.get_xticklabels()], [str(n) for n in fixture.WORKERS])
            self.assertEqual((axes.get_xscale(), axes.get_yscale()), ("log", "log"))

    def test_build_up_shows_the_consensus_and_the_range_of_the_estimates(self):
        directory = fixture.make(self.path("r"))
        path = os.path.join(directory, "results.csv")
        table = rows(path)
        for row in table:
            known = row["metric_group"] == "selection" and row["sparsifier"] == "topk" and row["counts_origin"] == "projected"
            for column, factor in (("build_up_consensus_mean", 0.9), ("build_up_estimate_low", 0.8), ("build_up_estimate_high", 1.1)):
                row[column] = repr(factor * float(row["build_up_mean"])) if known else ""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(table[0]))
            writer.writeheader()
            writer.writerows(table)
        drawing, = drawings(directory, "build_up", "double")
        found = [r for r in drawing.table if r["curve"] == "consensus"]
        means = {r["workers"]: (r["value"], r["counts_origin"]) for r in drawing.table if (r["panel"], r.get("sparsifier"), r["curve"]) == ("build_up", "topk", "sparsifier")}
        self.assertEqual([r["workers"] for r in found], [n for n, (_, origin) in means.items() if origin == "projected"])
        self.assertGreater(len(found), 2)
        for r in found:
            for key, factor in (("value", 0.9), ("estimate_low", 0.8), ("estimate_high", 1.1)):
                self.assertAlmostEqual(r[key], factor * means[r["workers"]][0])
        stars = [line for line in drawing.figure.axes[0].lines if line.get_marker() == "*"]
        self.assertEqual([list(line.get_xdata()) for line in stars], [[r["workers"] for r in found]])
        self.assertEqual([list(line.get_ydata()) for line in stars], [[r["value"] for r in found]])
        self.assertEqual([line for line in drawing.figure.axes[1].lines if line.get_marker() == "*"], [])
        self.assertIn("consensus of three estimates", drawing.caption)
        # Nothing of it where the results have none.
        plain, = drawings(fixture.make(self.path("plain")), "build_up", "double")
        self.assertNotIn("consensus", plain.caption)
        self.assertEqual([r for r in plain.table if r["curve"] == "consensus"], [])

    def test_break_even_of_bandwidth(self):
        drawing, = drawings(fixture.make(self.path("r")), "build_up", "double")
        curve = {r["workers"]: r["value"] for r in drawing.table if r["curve"] == "bandwidth_break_even"}
        for n in fixture.WORKERS:
            # k n + U = N with k = density N.
            self.assertEqual(curve[n], None if n >= 100 else 1 - 0.01 * n)
        best, = [r for r in drawing.table if r["curve"] == "break_even_at_best"]
        self.assertAlmostEqual(best["workers"], 99)
        self.assertAlmostEqual(1 / (best["workers"] + 1), best["value"])

    def test_break_even_above_the_panel_is_not_in_the_legend(self):
        for density, inside in ((0.01, True), (0.0001, False)):
            directory = fixture.make(self.path(str(density)), workers=(2, 4, 128), platforms=("hdr-nvlink",), densities=(density,))
            drawing, = drawings(directory, "build_up", "double")
            labels = " ".join(text.get_text() for legend in drawing.figure.legends for text in legend.get_texts())
            self.assertEqual("k n + U = N" in labels, inside)
            self.assertEqual("lies above the panel" in drawing.caption, not inside)

    def test_captured_solid_projected_dashed_beyond_dotted(self):
        from analysis import style

        drawing, = drawings(fixture.make(self.path("r")), "build_up", "double")
        axes = drawing.figure.axes[0]
        pieces, filled = {}, {}
        for line in lines_of(axes, style.look("topk").colour):
            x = list(line.get_xdata())
            if line.get_marker() in ("None", None, ""):
                pieces[x[0], x[1]] = line._unscaled_dash_pattern if hasattr(line, "_unscaled_dash_pattern") else line._us_dashOffset
            else:
                for n in x:
                    filled[n] = line.get_markerfacecolor() != "white"
        self.assertEqual({n for n in filled if filled[n]}, {2, 4, 8, 16})
        self.assertEqual({n for n in filled if not filled[n]}, {32, 64, 128, 256})
        kinds = [pieces[a, b] for a, b in zip(fixture.WORKERS, fixture.WORKERS[1:])]
        self.assertEqual([kinds.index(kind) for kind in kinds], [0, 0, 0, 3, 3, 5, 5])
        labels = [text.get_text() for legend in drawing.figure.legends for text in legend.get_texts()]
        for label in ("captured (n ≤ W = 16)", "projected (n > W)", "not validated (shaded)"):
            self.assertIn(label, labels)
        shaded = [patch for patch in axes.patches if patch.get_x() == 64] if hasattr(axes.patches[0], "get_x") else \
            [patch for patch in axes.patches if min(patch.get_xy()[:, 0]) == 64]
        self.assertEqual(len(shaded), 1)

    def test_all_captured_has_no_word_of_projection(self):
        directory = fixture.make(self.path("r"), workers=(2, 4, 8, 16))
        for name in ("build_up", "speed_up"):
            drawing, = drawings(directory, name, "double")
            labels = " ".join(text.get_text() for legend in drawing.figure.legends for text in legend.get_texts())
            self.assertNotIn("projected", labels)
            self.assertNotIn("validated", labels)
            self.assertNotIn("are projected from", drawing.caption)

    def test_breakdown_bars_add_up(self):
        directory = fixture.make(self.path("r"))
        found = drawings(directory, "breakdown", "double")
        self.assertEqual([d.name for d in found], ["breakdown-platform_ethernet_10g", "breakdown-platform_hdr_nvlink"])
        truth = {(r["sparsifier"], int(r["workers"])): r for r in rows(os.path.join(directory, "results.csv"))
                 if r["metric_group"] == "time" and r["platform"] == "ethernet-10g"}
        drawing = found[0]
        names = ["dense", "dense_fp16", *fixture.SPARSIFIERS]
        for axes, n in zip(drawing.figure.axes, fixture.WORKERS):
            self.assertIn(f"n = {n},", axes.get_title())
            self.assertEqual(axes.get_xlim()[0], 0)
            for place, name in enumerate(names):
                bars = [p for p in axes.patches if abs(p.get_y() + p.get_height() / 2 - place) < 1e-9]
                want = [1e3 * float(truth[name, n][phase]) for phase in ("forward_backward_time_s", "selection_time_s", "index_exchange_time_s",
                                                                         "value_exchange_time_s", "other_time_s")]
                self.assertEqual([round(b.get_width(), 9) for b in bars], [round(w, 9) for w in want if w > 0])
                self.assertAlmostEqual(max(b.get_x() + b.get_width() for b in bars), 1e3 * float(truth[name, n]["iteration_time_s_mean"]))
        self.assertTrue(any(text.get_text().startswith("iteration time (ms)") for text in drawing.figure.texts))

    def test_unit(self):
        from analysis import style  # noqa: F401
        from analysis.figures.breakdown import unit

        self.assertEqual([unit(s)[1] for s in (5e-6, 9.99e-4, 1e-3, 0.9, 1.0, 500.0)], ["µs", "µs", "ms", "ms", "s", "s"])
        self.assertEqual([s * unit(s)[0] for s in (5e-4, 0.5, 5.0)], [500.0, 500.0, 5.0])

    def test_speed_up_and_break_even(self):
        directory = fixture.make(self.path("r"))
        drawing, = drawings(directory, "speed_up", "double")
        truth = {(r["platform"], r["sparsifier"], int(r["workers"])): float(r["speed_up"]) for r in rows(os.path.join(directory, "results.csv"))
                 if r["metric_group"] == "time"}
        drawn = {(r["panel"], r["sparsifier"], r["workers"]): r["value"] for r in drawing.table if r["curve"] == "speed_up"}
        self.assertEqual(drawn, truth)
        with open(os.path.join(directory, "summary.json"), encoding="utf-8") as file:
            summary = json.load(file)["break_even"]
        points = {(e["platform"], e["sparsifier"], e["baseline"]): [p["workers"] for p in e["points"]] for e in summary if e["points"]}
        self.assertGreaterEqual(len(points), 6)
        marked = {}
        for r in drawing.table:
            if r["curve"] == "break_even":
                marked.setdefault((r["panel"], r["sparsifier"], r["baseline"]), []).append(r["workers"])
                # On the crossing of both curves: the dense one has the same speed-up there.
                from analysis.figures.speed_up import on_curve
                from analysis.results import load, slices

                one = next(s for s in slices(load(directory), "time", ("platform",)) if s.facets["platform"] == r["panel"])
                self.assertAlmostEqual(r["value"], on_curve(one.curves[r["baseline"], "{}"], r["workers"]), 9)
        self.assertEqual(marked, points)
        stars = [line for line in drawing.figure.axes[0].lines if line.get_marker() == "*"]
        self.assertEqual(sorted(line.get_xdata()[0] for line in stars), sorted(points["ethernet-10g", s, "dense"][0] for s in ("topk", "hard_threshold")))
        numbers = [text.get_text() for text in drawing.figure.axes[1].texts]
        self.assertEqual(sorted(numbers), sorted(f"{points['ethernet-10g', s, 'dense'][0]:.1f}" for s in ("topk", "hard_threshold")))

    def test_bands_and_the_floor_of_the_speed_up(self):
        def padded(row):
            return dict(row, all_gather="ring_padded")

        directory = fixture.make(self.path("r"), change=padded)
        nics = {"ethernet-10g": 1.25e6, "hdr-nvlink": 25}  # the first so fast that the share of the index exchange bounds nothing, the second as in the fixture
        with open(os.path.join(directory, "environment.json"), "w", encoding="utf-8") as file:
            json.dump({"platforms": {name: {"node": {"devices": 1 if b > 100 else 2, "device_link": {"bandwidth_GBps": 100}, "nics": {"count": 1, "bandwidth_GBps": b}},
                                            "network": {"topology": "crossbar"}} for name, b in nics.items()}}, file)
        drawing, = drawings(directory, "speed_up", "double")
        found = {(r["panel"], r["sparsifier"], r["workers"]): r for r in drawing.table if r["curve"] == "speed_up"}
        bounds = set()
        for (platform, name, n), r in found.items():
            # The fixture's quantiles are 0.97 and 1.05 times the mean time.
            self.assertAlmostEqual(r["low"] * 1.05, r["value"])
            self.assertAlmostEqual(r["high"] * 0.97, r["value"])
            if name in ("dense", "dense_fp16", "topk"):
                self.assertIsNone(r["floor"], name)  # nothing is padded
                continue
            _, _, _, _, padding, largest = fixture.selection(name, 0.01, n, 1)
            parts = fixture.phases(name, 0.01, n, platform, 1)
            bandwidth = 1e9 * (100 if platform == "hdr-nvlink" and n == 2 else 12.5 if platform == "hdr-nvlink" else 1.25e6)
            by_bytes, by_share = (n - 1) * (largest - largest / padding) * 12 / bandwidth, parts[2] * (1 - 1 / padding)
            bounds.add(by_bytes < by_share)
            self.assertAlmostEqual(r["floor"], n * fixture.PLATFORMS[platform][2] / (sum(parts) - min(by_bytes, by_share)), delta=1e-9 * n)
        self.assertEqual(bounds, {True, False})
        self.assertIn("at most the bytes that are padding", drawing.caption)
        hatched = max(sum(bool(c.get_hatch()) for c in axes.collections) for axes in drawing.figure.axes)
        self.assertEqual(hatched, 5)  # all but Top-k and the baselines
        os.remove(os.path.join(directory, "environment.json"))
        self.assertTrue(all(r.get("floor") is None for r in drawings(directory, "speed_up", "double")[0].table))
        # With runs of an all-gather that does not pad, those are it.
        def both(row):
            row = dict(row, all_gather="pipelined_ready" if row["seed"] == 2 else "ring_padded", seed=1, run_id=row["run_id"] + str(row["seed"]))
            if row["all_gather"] == "pipelined_ready" and row["metric_group"] == "time" and row["sparsifier"] == "deft":
                row["speed_up"] = repr(float(row["speed_up"]) * 1.5)
            return row

        found = drawings(fixture.make(self.path("s"), sparsifiers=("deft", "sage"), workers=(2, 16), platforms=("hdr-nvlink",), seeds=(1, 2), change=both, break_even=False), "speed_up", "double")
        drawing = next(d for d in found if "padded" in d.name)
        floors = {(r["sparsifier"], r["workers"]): r["floor"] and r["floor"] / r["value"] for r in drawing.table if r["curve"] == "speed_up"}
        self.assertEqual({k: v and round(v, 4) for k, v in floors.items()}, {("deft", 2): 1.5, ("deft", 16): 1.5, **{(s, n): None for s in ("dense", "dense_fp16", "sage") for n in (2, 16)}})
        self.assertIn("the runs with the all-gather pipelined_ready", drawing.caption)
        self.assertNotIn("Hatched", next(d for d in found if "padded" not in d.name).caption)

    def test_ranges_of_faster(self):
        from analysis.figures.speed_up import in_all, wins
        from analysis.results import BreakEven

        def entry(points, wins_at, loses_at):
            return BreakEven("p", "q", "topk", "{}", 0.01, "dense", "ring", 1, tuple(points), tuple(wins_at), tuple(loses_at))

        self.assertEqual(wins(entry([], [2, 4], []), 2, 4), [(2, 4)])
        self.assertEqual(wins(entry([], [], [2, 4]), 2, 4), [])
        self.assertEqual(wins(entry([3.0], [4], [2]), 2, 4), [(3.0, 4)])
        self.assertEqual(wins(entry([3.0, 5.5], [2, 8], [4]), 2, 8), [(2, 3.0), (5.5, 8)])
        self.assertEqual(wins(entry([], [8], []), 8, 8), [(8, 8)])
        self.assertEqual(in_all([[(2, 9)], [(2, 4), (6, 16)]]), [(2, 4), (6, 9)])
        self.assertEqual(in_all([[(2, 4)], []]), [])

    def test_ranges_of_projected_counts_are_hollow(self):
        def as_the_program(row):  # which says "captured" of the baselines at every n
            return dict(row, counts_origin="captured", validated="true", expansion="captured") if row["sparsifier"].startswith("dense") else row

        drawing, = drawings(fixture.make(self.path("r"), sparsifiers=("deft",), platforms=("ethernet-10g",), change=as_the_program), "speed_up", "double")
        faster, = [r for r in drawing.table if r["curve"] == "faster" and r["baseline"] == "dense"]
        self.assertEqual((faster["workers"], faster["workers_to"]), (2, 256))
        bars = {(round(p.get_x(), 9), round(p.get_x() + p.get_width(), 9)): p.get_facecolor() == (1.0, 1.0, 1.0, 1.0) for p in drawing.figure.axes[1].patches
                if hasattr(p, "get_height") and abs(p.get_height() - 0.62) < 1e-9}
        self.assertEqual(bars, {(2, 16): False, (16, 256): True})

    def test_no_break_even(self):
        for number, options in enumerate(({"break_even": False}, {"dense": ()})):
            directory = fixture.make(self.path(f"r{number}"), platforms=("hdr-nvlink",), **options)
            drawing, = drawings(directory, "speed_up", "double")
            self.assertEqual(len(drawing.figure.axes), 1)
            self.assertIn("there is none in these results", drawing.caption)
            self.assertEqual([r for r in drawing.table if r["curve"] == "break_even"], [])

    def test_seeds_are_averaged(self):
        directory = fixture.make(self.path("r"), seeds=(1, 2, 3), platforms=("hdr-nvlink",))
        drawing, = drawings(directory, "build_up", "double")
        mine = [r for r in rows(os.path.join(directory, "results.csv")) if r["metric_group"] == "selection" and r["sparsifier"] == "topk" and r["workers"] == "4"]
        self.assertEqual(len(mine), 3)
        point, = [r for r in drawing.table if (r["panel"], r.get("sparsifier"), r["workers"]) == ("build_up", "topk", 4)]
        self.assertAlmostEqual(point["value"], sum(float(r["build_up_mean"]) for r in mine) / 3)
        self.assertEqual(point["p05"], min(float(r["build_up_p05"]) for r in mine))
        self.assertEqual(point["p95"], max(float(r["build_up_p95"]) for r in mine))
        self.assertEqual(point["seeds"], 3)
        self.assertIn("and 3 seeds", drawing.caption)
        self.assertEqual(len(drawings(directory, "speed_up", "single")), 1)

    def test_a_file_for_every_combination(self):
        directory = fixture.make(self.path("r"), densities=(0.1, 0.01), profiles=("a100", "h100"), workers=(2, 32), sparsifiers=("topk",))
        names = [d.name for d in drawings(directory, "breakdown", "double")]
        self.assertEqual(len(names), 8)
        self.assertEqual(len(set(names)), 8)
        self.assertIn("breakdown-density_0.01-platform_hdr_nvlink-profile_h100", names)
        self.assertEqual([d.name for d in drawings(directory, "build_up", "double")], ["build_up"])
        self.assertEqual([d.name for d in drawings(directory, "build_up", "single")], ["build_up-density_0.1", "build_up-density_0.01"])
        # The baselines, which have density 1 and stand in the results once, are in every one.
        for drawing in drawings(directory, "speed_up", "double"):
            self.assertEqual(len([r for r in drawing.table if r.get("sparsifier") == "dense" and r["curve"] == "speed_up"]), 2 * 2)

    def test_spread_of_kernel_times_and_seeds(self):
        def quartiles(row):
            if row["metric_group"] == "time" and row["sparsifier"] == "topk":
                time, selection = float(row["iteration_time_s_mean"]), float(row["selection_time_s"])
                row.update(iteration_time_s_kernel_low=repr(time * 0.9), iteration_time_s_kernel_high=repr(time * 1.01), selection_time_s_kernel_low=repr(selection * 0.5),
                           selection_time_s_kernel_high=repr(selection * 2))
            if row["metric_group"] == "time" and row["seed"] == 2:
                change = 0.5 * float(row["selection_time_s"])
                row.update(selection_time_s=repr(1.5 * float(row["selection_time_s"])), iteration_time_s_mean=repr(float(row["iteration_time_s_mean"]) + change), iteration_time_s_p95="")
            return row

        columns = [f"{what}_time_s_kernel_{end}" for what in ("iteration", "selection") for end in ("low", "high")]
        directory = fixture.make(self.path("r"), sparsifiers=("topk", "sage"), platforms=("hdr-nvlink",), workers=(2, 16), more=columns, change=quartiles)
        drawing, = drawings(directory, "speed_up", "double")
        for r in drawing.table:
            if r["curve"] == "speed_up":
                # Quantiles are 0.97 and 1.05 times the mean; kernel times reach further down only.
                self.assertAlmostEqual(r["low"], r["value"] / 1.05)
                self.assertAlmostEqual(r["high"], r["value"] / (0.9 if r["sparsifier"] == "topk" else 0.97))
        self.assertIn("with every kernel time at its lower and upper quartile", drawing.caption)
        for seeds, bands in (((1,), {"topk": (0.5, 2), "sage": (None, None)}), ((1, 2), {"topk": (0.5 / 1.25, 2 / 1.25), "sage": (1 / 1.25, 1.5 / 1.25)})):
            directory = fixture.make(self.path(str(len(seeds))), sparsifiers=("topk", "sage"), platforms=("hdr-nvlink",), workers=(2, 16), seeds=seeds, more=columns, change=quartiles)
            drawing, = drawings(directory, "selection_time", "double")
            found = [r for r in drawing.table if r["curve"] == "sparsifier"]
            self.assertEqual(len(found), 4)
            for r in found:
                for end, factor in zip(("low", "high"), bands[r["sparsifier"]]):
                    if factor is None:
                        self.assertIsNone(r[end])
                    else:
                        self.assertAlmostEqual(r[end], factor * r["value"])
            self.assertEqual("from the lowest to the highest seed" in drawing.caption, len(seeds) == 2)
            self.assertIn("quartile", drawing.caption)

    def test_other_axes_make_files_of_their_own(self):
        from analysis.figures.speed_up import entries_of
        from analysis.results import load, slices

        def without_feedback(row):
            # What the fixture runs with seed 2 stands for runs without error feedback.
            return dict(row, error_feedback="false" if row["seed"] == 2 else "true", seed=1)

        directory = fixture.make(self.path("r"), sparsifiers=("topk", "micro"), platforms=("ethernet-10g",), seeds=(1, 2), more=("error_feedback",), change=without_feedback)
        path = os.path.join(directory, "summary.json")
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
        for entry in summary["break_even"]:
            entry.update(error_feedback=entry["seed"] == 1, seed=1)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(summary, file)
        for name in ("build_up", "speed_up"):
            self.assertEqual([d.name for d in drawings(directory, name, "double")], [f"{name}-error_feedback_{value}" for value in ("true", "false")])
        self.assertIn("error feedback: false", drawings(directory, "build_up", "double")[1].caption)
        loaded = load(directory)
        for one in slices(loaded, "time", ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast")):
            found = entries_of(loaded, one)
            self.assertEqual(len(found), 4)
            self.assertEqual({e.more["error_feedback"] for e in found}, {one.facets["error_feedback"] == "true"})
            self.assertEqual(len(one.curves), 4)  # both baselines are in both

    def test_break_even_of_another_collective_is_not_drawn(self):
        directory = fixture.make(self.path("r"), platforms=("ethernet-10g",))
        self.assertTrue([r for r in drawings(directory, "speed_up", "double")[0].table if r["curve"] == "break_even"])
        with open(os.path.join(directory, "summary.json"), encoding="utf-8") as file:
            summary = json.load(file)
        for entry in summary["break_even"]:
            entry["all_reduce"] = "tree"
        with open(os.path.join(directory, "summary.json"), "w", encoding="utf-8") as file:
            json.dump(summary, file)
        self.assertEqual([r for r in drawings(directory, "speed_up", "double")[0].table if r["curve"] == "break_even"], [])

    def test_expansions_share_the_captured_points(self):
        def both(row):
            return row

        first, second = fixture.make(self.path("a"), sparsifiers=("topk",), platforms=("hdr-nvlink",), change=both), self.path("b")

        def boot(row):
            row["expansion_requested"] = "boot"
            if row["counts_origin"] == "projected":
                row["expansion"] = "boot"
                for column in ("build_up_mean", "build_up_p95"):
                    row[column] = row[column] and repr(float(row[column]) * 1.1)
            return row

        fixture.make(second, sparsifiers=("topk",), platforms=("hdr-nvlink",), change=boot)
        with open(os.path.join(second, "results.csv"), encoding="utf-8") as file:
            more = file.read().split("\n", 1)[1]
        with open(os.path.join(first, "results.csv"), "a", encoding="utf-8") as file:
            file.write(more)
        found = drawings(first, "build_up", "double")
        self.assertEqual([d.name for d in found], ["build_up-expansion_requested_auto", "build_up-expansion_requested_boot"])
        values = [[r["value"] for r in d.table if r["panel"] == "build_up" and r.get("sparsifier") == "topk"] for d in found]
        self.assertEqual([len(v) for v in values], [8, 8])
        self.assertEqual(values[0][:4], values[1][:4])
        self.assertNotEqual(values[0][4:], values[1][4:])

    def test_empty_and_nan_are_gaps(self):
        def holes(row):
            if row["metric_group"] == "selection" and row["sparsifier"] == "sage" and row["workers"] == 8:
                for column in ("build_up_mean", "build_up_p05", "build_up_p95"):
                    row[column] = "nan"
            if row["metric_group"] == "selection" and row["sparsifier"] == "deft":
                for column in fixture.SELECTION:
                    row[column] = ""
            if row["metric_group"] == "time" and row["sparsifier"] == "deft":
                for column in fixture.TIME:
                    row[column] = ""
            return row

        directory = fixture.make(self.path("r"), change=holes, platforms=("hdr-nvlink",))
        drawing, = drawings(directory, "build_up", "double")
        point, = [r for r in drawing.table if (r["panel"], r.get("sparsifier"), r["workers"]) == ("build_up", "sage", 8)]
        self.assertTrue(math.isnan(point["value"]))
        from analysis import style

        xs = {x for line in lines_of(drawing.figure.axes[0], style.look("sage").colour) for x in line.get_xdata()}
        self.assertEqual(xs, set(fixture.WORKERS) - {8})
        self.assertIn("DEFT, build-up U/k, density 0.01", drawing.caption)
        self.assertEqual(plot(directory, "--format", "png")[0], 0)
        cells = [r for r in rows(os.path.join(directory, "figures", "build_up.csv")) if r["sparsifier"] == "sage" and r["workers"] == "8"]
        self.assertEqual([r["value"] == "" for r in cells], [True, False])


class Looks(unittest.TestCase):
    def test_no_two_sparsifiers_look_alike(self):
        from analysis import style

        names = list(style._KNOWN)
        self.assertEqual(len(names), 21)
        self.assertEqual(len({(style.look(n).colour, style.look(n).marker) for n in names}), len(names))
        self.assertEqual(len({style.look(n).label for n in names}), len(names))
        self.assertEqual((style.look("topk").colour, style.look("topk").marker), (style.VERMILLION, "o"))
        unknown = style.look("my_own")
        self.assertEqual(unknown, style.look("my_own"))
        self.assertNotIn((unknown.colour, unknown.marker), {(style.look(n).colour, style.look(n).marker) for n in names})

    def test_variants_differ_and_name_what_differs(self):
        from analysis import style

        looks = style.looks([("topk", "{}"), ("topk", '{"a":1,"b":2}'), ("topk", '{"a":1,"b":3}'), ("dgc", '{"a":1}')])
        self.assertEqual([look.label for look in looks.values()], ["Top-k", "Top-k (a = 1, b = 2)", "Top-k (a = 1, b = 3)", "DGC"])
        self.assertEqual(len({look.colour for look in looks.values()}), 4)


class Files(DirectoryTest):
    def test_same_input_same_bytes(self):
        first, second = (fixture.make(self.path(name), workers=(2, 16, 128), platforms=("ethernet-10g",)) for name in ("a", "b"))
        drawn = ("build_up", "breakdown", "speed_up", "energy_time")
        for directory, seed, zone in ((first, "1", "UTC"), (second, "2", "Asia/Tokyo")):
            done = plot_process(directory, *(word for name in drawn for word in ("--figure", name)), PYTHONHASHSEED=seed, TZ=zone, SOURCE_DATE_EPOCH="1" + seed)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        names = sorted(os.listdir(os.path.join(first, "figures")))
        self.assertEqual(names, sorted(["manifest.json"] + [f"{name}.{ending}" for name in drawn for ending in ("pdf", "svg", "png", "csv", "txt", "py")]))
        self.assertEqual(names, sorted(os.listdir(os.path.join(second, "figures"))))
        for name in names:
            with open(os.path.join(first, "figures", name), "rb") as a, open(os.path.join(second, "figures", name), "rb") as b:
                data = a.read()
                self.assertGreater(len(data), 300)
                self.assertTrue(data == b.read(), name)
                if name.endswith(".pdf"):
                    self.assertIn(b"/Type /Font", data)
                    self.assertNotIn(b"/Type3", data)
                if name.endswith((".pdf", ".svg")):
                    self.assertNotIn(b"Date", data)

    def test_choice_of_figure_and_format(self):
        directory = fixture.make(self.path("r"), workers=(2, 4), platforms=("hdr-nvlink",), sparsifiers=("topk",))
        status, out, err = plot(directory, "--figure", "speed_up", "--format", "svg", "--style", "single")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(sorted(os.listdir(os.path.join(directory, "figures"))), ["manifest.json", "speed_up.csv", "speed_up.py", "speed_up.svg", "speed_up.txt"])
        self.assertEqual(out.split(), [os.path.join(directory, "figures", f"speed_up.{e}") for e in ("svg", "csv", "txt", "py")])

    def test_files_that_no_longer_belong_to_the_results_go(self):
        directory = fixture.make(self.path("r"), workers=(2, 4), densities=(0.01, 0.1), sparsifiers=("topk",))
        self.assertEqual(plot(directory, "--figure", "build_up", "--style", "single")[0], 0)
        self.assertEqual(plot(directory, "--figure", "speed_up", "--format", "svg,png")[0], 0)
        listed = lambda: set(os.listdir(os.path.join(directory, "figures")))  # noqa: E731
        narrow = {name for name in listed() if name.startswith("build_up")}
        self.assertEqual(len(narrow), 12)  # a file per density
        with open(self.path("r", "figures", "mine.pdf"), "w", encoding="utf-8") as file:
            file.write("not the program's")
        # Another style: one file for both densities. What was not asked for again stays.
        status, _, err = plot(directory, "--figure", "build_up", "--format", "png,svg", "--style", "double")
        self.assertEqual(status, 0)
        self.assertIn("removed 12 files of an earlier call", err)
        wide = {"build_up.png", "build_up.svg", "build_up.csv", "build_up.txt", "build_up.py"}
        self.assertEqual({name for name in listed() if name.startswith("build_up")}, wide)
        self.assertLessEqual({"mine.pdf", "manifest.json"}, listed())
        self.assertTrue(any(name.startswith("speed_up") for name in listed()))
        # The same drawing in one more format adds; in another style it replaces.
        self.assertEqual(plot(directory, "--figure", "build_up", "--format", "pdf")[2], "")
        self.assertLessEqual(wide | {"build_up.pdf"}, listed())
        self.assertIn("figures/build_up.png", plot(directory, "--figure", "build_up", "--format", "pdf", "--style", "ieee-double")[2])
        self.assertEqual({name for name in listed() if name.startswith("build_up")}, wide - {"build_up.png", "build_up.svg"} | {"build_up.pdf"})
        # A manifest that says anything else removes nothing outside, and a broken one nothing at all.
        for text in ('{"files": {"build_up": {"../results.csv": "x", "figures/../results.csv": "x", "/etc/passwd": "x"}}}', "{", "[]", '{"files": []}'):
            with open(self.path("r", "figures", "manifest.json"), "w", encoding="utf-8") as file:
                file.write(text)
            self.assertEqual(plot(directory, "--figure", "build_up", "--format", "pdf", "--style", "ieee-double")[::2], (0, ""))
            self.assertTrue(os.path.exists(self.path("r", "results.csv")))

    def test_captions_name_everything(self):
        directory = fixture.make(self.path("r"))
        for name in ("build_up", "breakdown", "speed_up"):
            text = drawings(directory, name, "double")[0].caption
            for word in ("fixture-lstm", "density wanted: 0.01", "2, 4, 8, 16, 32, 64, 128, 256", "W = 16", "hybrid", "20 recorded iterations after 5 of warm-up", "seed: 1",
                         "beyond the range validated"):
                self.assertIn(word, text, name)
            for word in () if name == "build_up" else ("ethernet-10g", "a100-cuda", "measured", "assumed (fixture)", "SimGrid", "all-gather: ring", "broadcast: binomial"):
                self.assertIn(word, text, name)
        self.assertIn("5 % to 95 %", drawings(directory, "build_up", "double")[0].caption)

    def test_captions_carry_the_warnings(self):
        directory = fixture.make(self.path("r"), workers=(2, 4), platforms=("hdr-nvlink",), sparsifiers=("topk",))
        path = os.path.join(directory, "summary.json")
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
        for count, words in ((2, "Warnings: warning 0; warning 1.\n"), (14, "warning 11; and 2 more in summary.json.\n"), (0, None)):
            summary["warnings"] = [f"warning {number}" for number in range(count)]
            with open(path, "w", encoding="utf-8") as file:
                json.dump(summary, file)
            for name in ("build_up", "breakdown", "speed_up", "padding", "energy_time"):
                text = drawings(directory, name, "double")[0].caption
                if words:
                    self.assertTrue(text.endswith(words), text)
                    self.assertEqual(text.count("Warnings:"), 1)
                else:
                    self.assertNotIn("Warnings", text)

    def test_list_needs_no_matplotlib(self):
        program = ("import sys; sys.modules['matplotlib'] = None; sys.modules['numpy'] = None; sys.argv = ['plot.py', '--list'];"
                   f"import runpy; runpy.run_path({PLOT!r}, run_name='__main__')")
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        figures = json.loads(done.stdout)
        self.assertEqual([f["name"] for f in figures][:3], ["build_up", "breakdown", "speed_up"])
        self.assertEqual(len(figures), 13)
        self.assertTrue(all(set(f) == {"name", "title", "description"} and all(f.values()) for f in figures))

    def test_without_matplotlib_one_line(self):
        directory = fixture.make(self.path("r"), workers=(2,), platforms=("hdr-nvlink",), sparsifiers=("topk",))
        program = (f"import sys; sys.modules['matplotlib'] = None; sys.argv = ['plot.py', {directory!r}];"
                   f"import runpy; runpy.run_path({PLOT!r}, run_name='__main__')")
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^sparscale: figures need matplotlib 3.6 or newer[^\n]*\n$")
        self.assertFalse(os.path.exists(os.path.join(directory, "figures")))


if __name__ == "__main__":
    unittest.main()
