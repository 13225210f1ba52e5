"""The figures made of panels, the map, the styles, the scripts that draw again, the LaTeX tables."""
import csv
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import unittest

from support import DirectoryTest, LegibilityTest, drawings, plot

import fixture

NAMES = ("efficiency", "padding", "density_over_iterations", "selection_time", "traffic", "energy_time", "winner_map")


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def results(directory, group, platform="hdr-nvlink"):
    return {(r["sparsifier"], int(r["workers"])): r for r in rows(os.path.join(directory, "results.csv")) if r["metric_group"] == group and r["platform"] == platform}


class Legibility(LegibilityTest):
    def test_new_figures_in_both_widths(self):
        directory = fixture.make(self.path("r"), workers=(2, 16, 64, 256), sparsifiers=("topk", "deft", "exdyna"), runs=True)
        self.assertEqual(self.check_texts(directory, NAMES), (1 + 1 + 1 + 1 + 1 + 2 + 1) + (2 + 1 + 1 + 1 + 1 + 2 + 1))

    def test_claims_and_link_classes_in_both_widths(self):
        directory = fixture.make(self.path("r"), workers=(2, 16, 64, 256), sparsifiers=("topk", "deft", "exdyna"), links=True)
        with open(os.path.join(directory, "experiment.json"), "w", encoding="utf-8") as file:
            json.dump({"claims": [{"claim": f"at n = {n} with {s} the $build-up$ is as in a rather long sentence of its own source", "source": "s", "value":
                                   {"column": "build_up_mean", "where": {"sparsifier": s, "workers": n, "platform": "hdr-nvlink"}}, "expected": 1.2 * n ** 0.5, "within": 0.5 * n ** 0.5}
                                  for n in (2, 16, 64, 256) for s in ("topk", "deft", "exdyna") for _ in range(2)]}, file)
        styles = (("double", 7.0), ("ieee-single", 3.5))
        self.assertEqual(self.check_texts(directory, ("claims", "link_traffic"), styles), 2 * (1 + 2))

    def test_columns_of_ieee_and_acm(self):
        directory = fixture.make(self.path("r"), workers=(2, 16, 256), sparsifiers=("topk", "exdyna"), runs=True)
        styles = (("ieee-single", 3.5), ("acm-double", 7.0))
        self.assertEqual(self.check_texts(directory, ("speed_up", "padding"), styles), (2 + 1) + (1 + 1))
        drawing = drawings(directory, "traffic", "ieee-double")[0]
        self.assertEqual(drawing.figure.get_size_inches()[0], 7.16)
        self.assertEqual(drawing.figure.axes[0].xaxis.label.get_fontname(), "STIXGeneral")
        self.assertEqual(min(text.get_fontsize() for text in drawing.figure.axes[0].get_xticklabels()), 8)


class Numbers(DirectoryTest):
    def test_over_n(self):
        directory = fixture.make(self.path("r"))
        time, traffic, selection = (results(directory, group) for group in ("time", "traffic", "selection"))
        for name, panel, want in (
                ("efficiency", "hdr-nvlink", lambda s, n: float(time[s, n]["speed_up"]) / n),
                ("selection_time", "a100-cuda", lambda s, n: 1e3 * float(time[s, n]["selection_time_s"])),
                ("traffic", "density 0.01", lambda s, n: 1e-6 * float(traffic[s, n]["bytes_sent_per_worker_mean"])),
                ("padding", "workers", lambda s, n: float(selection[s, n]["padding_mean"]))):
            with self.subTest(name):
                drawing, = drawings(directory, name, "double")
                drawn = {(r["sparsifier"], r["workers"]): r["value"] for r in drawing.table if r["curve"] == "sparsifier" and r["panel"] == panel}
                names = fixture.SPARSIFIERS + (("dense", "dense_fp16") if name in ("efficiency", "traffic") else ())
                self.assertEqual(set(drawn), {(s, n) for s in names for n in fixture.WORKERS})
                for (s, n), value in drawn.items():
                    self.assertAlmostEqual(value, want(s, n), delta=1e-12 * abs(value))

    def test_bands_of_the_efficiency_are_those_of_the_speed_up(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",), platforms=("ethernet-10g",))
        rows = {name: [r for r in drawing.table if r["curve"] in ("sparsifier", "speed_up")] for name in ("efficiency", "speed_up")
                for drawing in drawings(directory, name, "double")[:1]}
        wide = 0
        for row in rows["efficiency"]:
            speed, = [r for r in rows["speed_up"] if all(r[key] == row[key] for key in ("sparsifier", "workers"))]
            for key in ("low", "high"):
                self.assertAlmostEqual(row[key] * row["workers"], speed[key], delta=1e-12 * speed[key])
            wide += row["low"] < row["value"] < row["high"]
        self.assertGreater(wide, 0)

    def test_what_is_drawn_is_the_table(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk", "deft"))
        drawing, = drawings(directory, "efficiency", "double")
        from analysis import style

        for axes, platform in zip(drawing.figure.axes, ("ethernet-10g", "hdr-nvlink")):
            for name in ("topk", "deft"):
                drawn = {}
                for line in axes.lines:
                    if line.get_color() == style.look(name).colour and line.get_marker() == style.look(name).marker:
                        drawn.update(zip(line.get_xdata(), line.get_ydata()))
                table = {r["workers"]: r["value"] for r in drawing.table if (r["panel"], r.get("sparsifier"), r["curve"]) == (platform, name, "sparsifier")}
                self.assertEqual(drawn, table)
                self.assertEqual(len(table), len(fixture.WORKERS))
        marks = [r for r in drawing.table if r["curve"] == "break_even"]
        with open(os.path.join(directory, "summary.json"), encoding="utf-8") as file:
            points = [p["workers"] for e in json.load(file)["break_even"] if e["baseline"] == "dense" for p in e["points"]]
        self.assertEqual(sorted(m["workers"] for m in marks), sorted(points))
        self.assertGreater(len(points), 0)

    def test_over_iterations(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk", "sage"), runs=True)
        selection = results(directory, "selection", "ethernet-10g")
        padding, = drawings(directory, "padding", "double")
        density, = drawings(directory, "density_over_iterations", "double")
        self.assertEqual([axes.get_title() for axes in padding.figure.axes], ["against n, means", "n = 16, captured", "n = 256, not validated"])
        for drawing, panel, x, name in ((padding, "n = 256", "x", "padding"), (density, "threshold, n = 16", "iteration", "threshold"),
                                        (density, "density, n = 256", "iteration", "density")):
            n = int(panel.split("= ")[1])
            with open(os.path.join(directory, "runs", selection["sage", n]["run_id"] + ".json"), encoding="utf-8") as file:
                series = json.load(file)["series"][name]
            mine = [(r[x], r["value"]) for r in drawing.table if (r["panel"], r.get("sparsifier")) == (panel, "sage")]
            self.assertEqual(mine, [(5 + i, value) for i, value in enumerate(series)])  # 5 of warm-up

    def test_seeds_make_a_band_over_iterations(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",), seeds=(1, 2), platforms=("hdr-nvlink",), runs=True, workers=(2, 16))
        drawing, = drawings(directory, "density_over_iterations", "double")
        for r in drawing.table:
            if r["panel"] == "density, n = 16" and r["curve"] == "sparsifier":
                self.assertAlmostEqual(r["value"], (r["p05"] + r["p95"]) / 2)
                self.assertAlmostEqual(r["p95"] / r["p05"], 1.01)

    def test_energy_and_its_pareto_front(self):
        from analysis.figures.energy_time import front

        self.assertEqual(front([(2, 0.5), (1, 0.2), (3, 0.4), (3, 0.9), (2, 0.1), (1, 0.2)]), [(1, 0.2), (2, 0.5), (3, 0.9)])
        directory = fixture.make(self.path("r"), densities=(0.01, 0.001), platforms=("hdr-nvlink",))
        drawing, = drawings(directory, "energy_time", "double")
        selection = {(r["sparsifier"], r["density"], r["workers"]): r for r in rows(os.path.join(directory, "results.csv")) if r["metric_group"] == "selection"}
        mine = [r for r in drawing.table if r["panel"] == "n = 256" and r["curve"] == "sparsifier"]
        self.assertEqual(len(mine), 2 + 2 * len(fixture.SPARSIFIERS))
        for r in mine:
            self.assertEqual(r["energy_exchanged"], float(selection[r["sparsifier"], repr(r["density_wanted"]), "256"]["energy_exchanged_mean"]))
            better = [o for o in mine if o["iteration_time_ms"] <= r["iteration_time_ms"] and o["energy_exchanged"] >= r["energy_exchanged"]
                      and (o["iteration_time_ms"], o["energy_exchanged"]) != (r["iteration_time_ms"], r["energy_exchanged"])]
            self.assertEqual(r["on_pareto_front"], not better)

    def test_winner_is_the_fastest(self):
        directory = fixture.make(self.path("r"), densities=(0.1, 0.001))
        found = drawings(directory, "winner_map", "double")
        self.assertEqual([d.name for d in found], ["winner_map-over_platform-density_0.1", "winner_map-over_platform-density_0.001",
                                                    "winner_map-over_density-platform_ethernet_10g", "winner_map-over_density-platform_hdr_nvlink"])
        times = {}
        for r in rows(os.path.join(directory, "results.csv")):
            if r["metric_group"] == "time" and r["density"] in ("0.001", "1.0"):
                times.setdefault((r["platform"], int(r["workers"])), []).append((float(r["iteration_time_s_mean"]), r["sparsifier"]))
        self.assertEqual(len(found[1].table), 2 * len(fixture.WORKERS))
        for r in found[1].table:
            ranked = sorted(times[r["line"], r["workers"]])
            self.assertEqual((r["iteration_time_s"], r["sparsifier"]), ranked[0])
            self.assertEqual((r["second_time_s"], r["second"]), ranked[1])
            self.assertAlmostEqual(float(r["text"]), dict((s, t) for t, s in ranked)["dense"] / ranked[0][0], delta=0.051)
        self.assertGreater(len({r["sparsifier"] for d in found for r in d.table}), 1)

    def test_map_over_the_bandwidth(self):
        directory = fixture.make(self.path("r"), workers=(2, 64))
        truth = drawings(directory, "winner_map", "double")[0].table
        kind = {"node": {"devices": 1, "nics": {"count": 1, "bandwidth_GBps": 1.25, "latency_us": 25, "name": "slow", "provenance": {}}}, "network": {"topology": "crossbar"}}
        for latency, line in ((25, ("25", "1.25")), (4, ("ethernet-10g", "hdr-nvlink"))):
            fast = {"node": {"devices": 1, "nics": {"count": 1, "bandwidth_GBps": 25, "latency_us": latency, "provenance": {"count": "x"}}}, "network": {"topology": "crossbar"}}
            with open(os.path.join(directory, "environment.json"), "w", encoding="utf-8") as file:
                json.dump({"platforms": {"ethernet-10g": kind, "hdr-nvlink": fast}}, file)
            drawing, = drawings(directory, "winner_map", "double")
            # Of one kind only when nothing but the bandwidth differs.
            self.assertEqual(tuple(t.get_text() for t in drawing.figure.axes[0].get_yticklabels()), line)
            self.assertEqual(drawing.figure.axes[0].get_ylabel(), "GB/s a NIC" if latency == 25 else "platform")
            names = {"25": "hdr-nvlink", "1.25": "ethernet-10g"}
            self.assertEqual({(names.get(r["line"], r["line"]), r["workers"], r["sparsifier"], r["iteration_time_s"]) for r in drawing.table},
                             {(r["line"], r["workers"], r["sparsifier"], r["iteration_time_s"]) for r in truth})
        with open(os.path.join(directory, "environment.json"), "w", encoding="utf-8") as file:
            json.dump({"platforms": {"ethernet-10g": {"node": {}}}}, file)
        self.assertIn("/platforms/ethernet-10g/node/nics/bandwidth_GBps: expected a number above 0, found none", plot(directory, "--figure", "winner_map")[2])

    def test_traffic_by_class_of_links(self):
        directory = fixture.make(self.path("r"), platforms=("hdr-nvlink",), links=True)
        drawing, = drawings(directory, "link_traffic", "double")
        drawn = {(r["panel"], r["sparsifier"], r["workers"]): r["value"] for r in drawing.table if r["curve"] == "sparsifier"}
        # Bytes of 1e6 n a worker: twice over device links, an eighth of that over NICs from the second node on.
        self.assertEqual({key[0] for key in drawn}, {"device links", "NICs"})
        for (panel, _, n), value in drawn.items():
            if panel == "NICs" and n <= 8:
                self.assertTrue(math.isnan(value))
            else:
                self.assertAlmostEqual(value, (2 if panel == "device links" else 0.25) * n)
        self.assertEqual({r["unit"] for r in drawing.table}, {"MB"})
        self.assertIn("Nothing crosses network links and global links.", drawing.caption)
        status, _, err = plot(fixture.make(self.path("s"), workers=(2,), platforms=("hdr-nvlink",)), "--figure", "link_traffic")
        self.assertEqual((status, err.count("\n")), (2, 1))
        self.assertIn("expected bytes by class of links for the figure link_traffic, found no column nic_bytes_mean", err)

    def test_claims_against_the_source(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk", "micro"), workers=(2, 64), platforms=("hdr-nvlink",))
        one = {"claim": "c", "source": "s", "value": {"column": "build_up_mean", "where": {"sparsifier": "micro", "workers": 64}}}
        claims = [{**one, "expected": 0.95, "within": 0.01}, {**one, "expected": 1.2, "within": 0.1, "differs_because": "of that"}, {**one, "at_most": 2}, {**one, "expected": 3, "within": 1},
                  {**one, "expected": 3, "within": 1, "value": {"column": "build_up_mean", "where": {"sparsifier": "deft"}}}]
        with open(os.path.join(directory, "experiment.json"), "w", encoding="utf-8") as file:
            json.dump({"claims": claims}, file)
        drawing, = drawings(directory, "claims", "double")
        self.assertEqual([(r["number"], r["claimed"], r["ours"], r["low"], r["high"], r["outcome"]) for r in drawing.table if r.get("number")],
                         [(1, 0.95, 0.94, 0.94, 0.96, "holds"), (2, 1.2, 0.94, 1.2 - 0.1, 1.2 + 0.1, "reason"), (4, 3.0, 0.94, 2.0, 4.0, "differs")])
        marks = {(line.get_xdata()[0], line.get_ydata()[0]): line.get_marker() for line in drawing.figure.axes[0].lines if line.get_marker() not in ("None", None, "")}
        self.assertEqual(marks, {(0.95, 0.94): "o", (1.2, 0.94): "D", (3.0, 0.94): "X"})
        self.assertIn("2: c (s): claimed 1.2 ± 0.1, ours 0.94, differs: of that.", drawing.caption)
        self.assertIn("1 claim with a bound only is not drawn. 1 of all claims was not run.", drawing.caption)
        with open(os.path.join(directory, "experiment.json"), "w", encoding="utf-8") as file:
            json.dump({"claims": claims[2:3]}, file)
        self.assertIn("expected claims with an expected number and their runs for the figure claims", plot(directory, "--figure", "claims")[2])

    def test_same_selection_time_on_every_platform_is_one_figure(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",))
        drawing, = drawings(directory, "selection_time", "double")
        self.assertIn("ethernet-10g and hdr-nvlink", drawing.caption)

        def slower(row):
            if row["platform"] == "hdr-nvlink" and row["metric_group"] == "time" and row["sparsifier"] == "topk" and row["workers"] == 8:
                for column in ("selection_time_s", "iteration_time_s_mean", "iteration_time_s_p95"):
                    row[column] = repr(float(row[column]) + 1e-4)
            return row

        self.assertEqual(len(drawings(fixture.make(self.path("s"), sparsifiers=("topk",), change=slower), "selection_time", "double")), 2)


class NotApplicable(DirectoryTest):
    def test_asked_for_by_name_or_not(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",), workers=(2, 4), platforms=("hdr-nvlink",))
        table = os.path.join(directory, "results.csv")
        for name, expected, found in (("winner_map", "more than one platform or density", "one of each"),
                                      ("density_over_iterations", "the runs' series in runs/", "no such directory")):
            self.assertEqual(plot(directory, "--figure", name), (2, "", f"sparscale: {table}: expected {expected} for the figure {name}, found {found}\n"))
        self.assertFalse(os.path.exists(os.path.join(directory, "figures")))

    def test_results_without_energy(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",), workers=(2, 4), platforms=("hdr-nvlink",))
        table = os.path.join(directory, "results.csv")
        with open(table, encoding="utf-8") as file:
            lines = list(csv.reader(file))
        at = lines[0].index("energy_exchanged_mean")
        with open(table, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(line[:at] + line[at + 1:] for line in lines)
        status, _, err = plot(directory, "--figure", "energy_time")
        self.assertEqual((status, err.count("\n")), (2, 1))
        self.assertIn("energy_exchanged_mean", err)
        self.assertEqual(plot(directory, "--figure", "traffic", "--format", "svg")[0], 0)

    def test_damaged_series(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",), workers=(2, 4), platforms=("hdr-nvlink",), runs=True)
        run = results(directory, "selection")["topk", 4]["run_id"]
        path = os.path.join(directory, "runs", run + ".json")
        with open(path, encoding="utf-8") as file:
            good = json.load(file)
        for change, place, expected in ((lambda v: v.pop("series"), "/series", "an object"),
                                        (lambda v: v["series"]["padding"].pop(), "/series/padding", "a list of 20 numbers"),
                                        (lambda v: v["series"]["padding"].__setitem__(3, "x"), "/series/padding/3", "a number or null")):
            value = json.loads(json.dumps(good))
            change(value)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(value, file)
            status, out, err = plot(directory, "--figure", "padding")
            self.assertEqual((status, out), (2, ""))
            self.assertTrue(err.startswith(f"sparscale: {path}: {place}: expected {expected}, found "), err)
        os.remove(path)
        self.assertEqual(plot(directory, "--figure", "padding"), (2, "", f"sparscale: {path}: expected a file, found none\n"))


class Scripts(DirectoryTest):
    def test_every_script_draws_its_csv_again(self):
        directory = fixture.make(self.path("r"), workers=(2, 16, 256), sparsifiers=("topk", "deft"), runs=True, links=True)
        with open(os.path.join(directory, "experiment.json"), "w", encoding="utf-8") as file:
            json.dump({"claims": [{"claim": f"c{n}", "source": "s", "value": {"column": "build_up_mean", "where": {"sparsifier": "topk", "workers": n, "platform": "hdr-nvlink"}}, "expected": n ** 0.8,
                                   "within": 1} for n in (2, 16, 256)]}, file)
        status, out, _ = plot(directory, "--format", "svg")
        self.assertEqual(status, 0)
        scripts = [path for path in out.split() if path.endswith(".py")]
        self.assertEqual(len(scripts), 15)
        import matplotlib.pyplot as plt

        for path in scripts:
            with self.subTest(os.path.basename(path)):
                spec = importlib.util.spec_from_file_location("redrawn", path)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                figure = module.draw()
                wanted, drawn = set(), set()
                for r in rows(path[:-3] + ".csv"):
                    if r.get("claimed"):
                        wanted.add((float(r["claimed"]), float(r["ours"])))
                    if r.get("curve") in ("sparsifier", "speed_up"):
                        y = "value" if "value" in r else "energy_exchanged"
                        x = next(key for key in ("x", "iteration", "iteration_time_ms", "workers") if key in r)
                        if r[y]:
                            wanted.add((float(r[x]), float(r[y])))
                for axes in figure.axes:
                    for line in axes.lines:
                        drawn.update(zip(map(float, line.get_xdata()), map(float, line.get_ydata())))
                if "breakdown" in path:
                    widths = sorted(p.get_width() for axes in figure.axes for p in axes.patches if hasattr(p, "get_width") and abs(p.get_height() - 0.78) < 1e-9)
                    phases = ("forward_backward", "selection", "index_exchange", "value_exchange", "other")
                    lengths = sorted(float(r[c]) for r in rows(path[:-3] + ".csv") for c in phases if float(r[c]) > 0)
                    self.assertEqual(len(widths), len(lengths))
                    for width, length in zip(widths, lengths):
                        self.assertAlmostEqual(width, length)
                elif "winner_map" in path:
                    self.assertEqual(sorted(t.get_text() for t in figure.axes[0].texts), sorted(r["text"] for r in rows(path[:-3] + ".csv")))
                else:
                    self.assertGreater(len(wanted), 2)
                    self.assertEqual(wanted - drawn, set())
                plt.close(figure)

    def test_alone_in_a_folder(self):
        directory = fixture.make(self.path("r"), workers=(2, 16), sparsifiers=("topk",), platforms=("hdr-nvlink",))
        self.assertEqual(plot(directory, "--format", "png", "--figure", "traffic")[0], 0)
        os.makedirs(self.path("alone"))
        for ending in ("py", "csv"):
            os.rename(os.path.join(directory, "figures", "traffic." + ending), self.path("alone", "traffic." + ending))
        done = subprocess.run([sys.executable, "-I", self.path("alone", "traffic.py")], capture_output=True, text=True, check=False, cwd="/")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(self.path("alone", "traffic-redrawn.pdf"), "rb") as file:
            self.assertEqual(file.read(5), b"%PDF-")


class Names(unittest.TestCase):
    def test_long_names_end_in_a_checksum(self):
        from analysis import files

        self.assertEqual(files.name("traffic", ["platform"], {"platform": "m (p3)"}), "traffic-platform_m_p3_")
        long = [files.name("traffic", ["platform"], {"platform": ["m" * 150, "n" * 150, end]}) for end in ("a", "b")]
        self.assertEqual([len(one) for one in long], [files.LONGEST] * 2)
        self.assertNotEqual(*long)
        self.assertEqual(long[0][:-9], long[1][:-9])
        self.assertRegex(long[0], "^traffic-platform_m{150}_n+-[0-9a-f]{8}$")


class Latex(DirectoryTest):
    def test_main_numbers(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk", "my_own&50%"), platforms=("hdr-nvlink",))
        self.assertEqual(plot(directory, "--format", "svg")[0], 0)
        self.assertEqual(os.listdir(os.path.join(directory, "tables")), ["main.tex"])
        with open(os.path.join(directory, "tables", "main.tex"), encoding="utf-8") as file:
            text = file.read()
        body = [line for line in text.splitlines() if not line.startswith("%")]
        self.assertEqual(sum(line in (r"\toprule", r"\midrule", r"\bottomrule") for line in body), 4)
        data = [line for line in body if line.endswith(r"\\") and "multicolumn" not in line]
        self.assertTrue(all(len(re.split(r"(?<!\\)&", line)) == 10 for line in data))
        self.assertEqual(len(data), 1 + 2 * 4)
        self.assertEqual(sum(r"my\_own\&50\%" in line for line in data), 2)
        time = results(directory, "time")
        row = next(line for line in data if line.startswith("Top-k") and data.index(line) > 4)
        cells = [cell.strip() for cell in row[:-2].split("&")]
        self.assertAlmostEqual(float(re.sub(r"[^0-9.]", "", cells[6])), 1e3 * float(time["topk", 256]["iteration_time_s_mean"]), delta=0.05)
        self.assertAlmostEqual(float(cells[7]), float(time["topk", 256]["speed_up"]), delta=0.5)
        self.assertEqual(sum(r"\textbf" in line for line in data), 2)
        self.assertIn(r"$n = 256^\ddagger$", text)

    def test_digits(self):
        from analysis.latex import escape, figures

        self.assertEqual([figures(v) for v in (1234.5, 12.345, 0.0012345, 0.0, math.nan)], ["1234", "12.3", "0.00123", "0", "--"])
        self.assertEqual(escape(r"a\b_{c}^~#$"), r"a\textbackslash{}b\_\{c\}\textasciicircum{}\textasciitilde{}\#\$")


if __name__ == "__main__":
    unittest.main()
