"""The figure of hidden and exposed communication: right pieces, right shares, what it refuses."""
import csv
import json
import os
import subprocess
import sys
import unittest

from support import LegibilityTest, drawings, plot

import fixture

HYBRID = 'crossbar (hybrid {"by_layer":"kind","streams":2})'
OPTIONS = '{"by_layer":"kind","streams":2}'
MORE = ("timeline", "timeline_options", "exposed_exchange_time_s", "overlapped_time_s")


def two_timelines(row):
    """The fixture's platforms stand for timelines of one platform."""
    if row["sparsifier"] == "dense_fp16":
        return None
    overlaps = row["platform"] == "hdr-nvlink"
    row.update(platform=HYBRID if overlaps else "crossbar", timeline="hybrid" if overlaps else "sequential", timeline_options=OPTIONS if overlaps else "{}")
    if row["metric_group"] == "time":
        row["exposed_exchange_time_s"] = repr(float(row["index_exchange_time_s"]) + float(row["value_exchange_time_s"]))
        row["overlapped_time_s"] = repr(0.25 * float(row["forward_backward_time_s"]) if overlaps else 0.0)
    return row


def activity(overlaps):
    if not overlaps:
        return {"worker": 0, "end_s": 0.5, "compute": [{"kind": "forward", "begin_s": 0, "end_s": 0.1}, {"kind": "backward", "begin_s": 0.1, "end_s": 0.3}],
                "communicate": [{"stream": 0, "begin_s": 0.3, "end_s": 0.5}]}
    return {"worker": 1, "end_s": 0.4, "compute": [{"kind": "backward", "begin_s": 0, "end_s": 0.2}, {"kind": "forward", "begin_s": 0.25, "end_s": 0.35}],
            "communicate": [{"stream": 0, "begin_s": 0.15, "end_s": 0.25}, {"stream": 1, "begin_s": 0.05, "end_s": 0.4}]}


class Overlap(LegibilityTest):
    def make(self, name="r", **options):
        directory = fixture.make(self.path(name), sparsifiers=(), dense=("dense",), workers=(4, 16), break_even=False, runs=True, more=MORE, **{"change": two_timelines, **options})
        runs = os.path.join(directory, "runs")
        with open(os.path.join(directory, "results.csv"), encoding="utf-8", newline="") as file:
            platform_of = {row["run_id"]: row["platform"] for row in csv.DictReader(file)}
        for run in os.listdir(runs):
            path = os.path.join(runs, run)
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            document["activity"] = activity(platform_of[run[:-5]] == HYBRID)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(document, file)
        return directory

    def test_pieces_and_shares(self):
        from analysis.results import load

        directory = self.make()
        drawing, = drawings(directory, "overlap", "double")
        self.assertEqual(drawing.name, "overlap")
        strips = [r for r in drawing.table if r["panel"] == "one iteration, n = 16"]
        unit = {"ms": 1e3, "s": 1.0}[strips[0]["unit"]]
        found = {(r["timeline"], r["lane"], r["kind"], round(r["from"] / unit, 9), round(r["to"] / unit, 9)) for r in strips}
        hybrid = "hybrid"  # the only one of its name
        self.assertEqual(found, {
            ("sequential", "computes", "forward", 0, 0.1), ("sequential", "computes", "backward", 0.1, 0.3), ("sequential", "communicates 1", "exposed", 0.3, 0.5),
            (hybrid, "computes", "backward", 0, 0.2), (hybrid, "computes", "forward", 0.25, 0.35),
            (hybrid, "communicates 1", "hidden", 0.15, 0.2), (hybrid, "communicates 1", "exposed", 0.2, 0.25),
            (hybrid, "communicates 2", "hidden", 0.05, 0.2), (hybrid, "communicates 2", "exposed", 0.2, 0.25), (hybrid, "communicates 2", "hidden", 0.25, 0.35),
            (hybrid, "communicates 2", "exposed", 0.35, 0.4)})
        self.assertEqual(len({r["place"] for r in strips}), 2 + 3)  # a lane each
        truth = {(row.platform, row.workers): row.values for row in load(directory).group("time")}
        for n in (4, 16):
            for platform, label in (("crossbar", "sequential"), (HYBRID, hybrid)):
                bars = {r["kind"]: r for r in drawing.table if r["panel"] == f"n = {n}" and r["timeline"] == label}
                values = truth[platform, n]
                self.assertAlmostEqual(bars["exposed"]["to"] / unit, values["iteration_time_s_mean"])
                self.assertAlmostEqual(bars["hidden"]["share"] * values["iteration_time_s_mean"], values["overlapped_time_s"])
                self.assertAlmostEqual(bars["exposed"]["share"] * values["iteration_time_s_mean"], values["exposed_exchange_time_s"])
                self.assertAlmostEqual(sum(bar["share"] for bar in bars.values()), 1)
                self.assertEqual(bars["alone"]["to"], bars["hidden"]["from"])
        drawn = sorted((round(p.get_x() / unit, 9), round((p.get_x() + p.get_width()) / unit, 9)) for p in drawing.figure.axes[0].patches)
        self.assertEqual(drawn, sorted((a, b) for _, _, _, a, b in found))
        for word in ("hidden where it computes", "dense on crossbar", "n = 16"):
            self.assertIn(word, drawing.caption)

    def test_runs_of_an_earlier_version_among_others(self):
        directory = self.make()
        drawing, = drawings(directory, "overlap", "double")
        self.assertNotIn("earlier version", drawing.caption)
        strip = next(r for r in drawing.table if r["panel"] == "one iteration, n = 16" and r["timeline"] == "sequential")
        path = os.path.join(directory, "runs", strip["run_id"] + ".json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"schema_version": 1, "series": {}}, file)
        drawing, = drawings(directory, "overlap", "double")
        self.assertEqual({r["timeline"] for r in drawing.table if r["panel"] == "one iteration, n = 16"}, {"hybrid"})
        self.assertEqual({r["timeline"] for r in drawing.table if r["panel"] == "n = 16"}, {"hybrid", "sequential"})
        self.assertIn("Without a strip, as an earlier version made their runs: sequential.", drawing.caption)

    def test_names_of_timelines(self):
        """Options that tell timelines of one name apart, and platforms without what stands in their brackets."""
        from analysis.figures.overlap import labels_of, platform_of
        from analysis.results import InputError

        class Mode:
            def __init__(self, platform, timeline, options):
                self.facets = {"platform": platform}
                self.row = type("Row", (), {"timeline": timeline, "timeline_options": options, "run_id": "00"})

            def rows(self):
                return [self.row]

        modes = [Mode("m (round_robin)", "sequential", "{}"), Mode("m (round_robin) (p3)", "p3", "{}"), Mode("m (round_robin) (hybrid)", "hybrid", "{}"),
                 Mode('m (round_robin) (hybrid {"layer_times":"equal","streams":2})', "hybrid", '{"layer_times":"equal","streams":2}'),
                 Mode("m (round_robin) (hybrid #0123abcd)", "hybrid", '{"by_layer":"kind","overlap_slowdown":1.5,"streams":2}')]
        self.assertEqual(labels_of(modes), ["sequential", "p3", "hybrid", "hybrid, layer times = equal, 2 streams", "hybrid, by kind, overlap slowdown = 1.5, 2 streams"])
        self.assertEqual({platform_of(one) for one in modes}, {"m (round_robin)"})
        self.assertEqual(platform_of(Mode('m (p3, disturbed {"stragglers":{"workers":[1],"factor":2}})', "p3", "{}")), 'm (disturbed {"stragglers":{"workers":[1],"factor":2}})')
        self.assertEqual(platform_of(Mode('m (disturbed {"jitter":{}})', "sequential", "{}")), 'm (disturbed {"jitter":{}})')
        with self.assertRaises(InputError):
            labels_of([Mode("m", "p3", "[]")])

    def test_legible(self):
        self.check_texts(self.make(), ("overlap",), (("double", 7.0), ("single", 3.3), ("ieee-single", 3.5), ("ieee-double", 7.16), ("acm-single", 3.33)))

    def test_long_iterations_are_cut_off(self):
        def slow(row):
            row = two_timelines(row)
            if row and row["metric_group"] == "time" and row["timeline"] == "hybrid":
                more = 9 * float(row["iteration_time_s_mean"])
                for column in ("iteration_time_s_mean", "iteration_time_s_p95", "value_exchange_time_s", "exposed_exchange_time_s"):
                    row[column] = repr(float(row[column]) + more)
            return row

        directory = self.make(change=slow, platforms=("hdr-nvlink", "ethernet-10g"))
        drawing, = drawings(directory, "overlap", "double")
        texts = [text.get_text() for axes in drawing.figure.axes for text in axes.texts]
        longest = max(r["to"] for r in drawing.table if r["panel"] == "n = 16")
        shorter = max(r["to"] for r in drawing.table if r["panel"] == "n = 16" and r["timeline"] == "sequential")
        self.assertGreater(longest, 3 * shorter)
        self.assertIn(f"{longest:.4g} →", texts)
        # Strips as well: those of the fixture last 0.4 and 0.5 s, far longer than its iterations.
        unit = {"ms": 1e3, "s": 1.0}[drawing.table[0]["unit"]]
        self.assertEqual([text.get_text() for text in drawing.figure.axes[0].texts], [f"{length * unit:.4g} →" for length in (0.4, 0.5)])
        self.assertIn("cut off", drawing.caption)
        self.check_texts(directory, ("overlap",))

    def test_what_it_refuses(self):
        from analysis.figures import NotApplicable

        with self.assertRaisesRegex(NotApplicable, "several timelines"):
            drawings(fixture.make(self.path("one")), "overlap", "double")
        directory = self.make()
        runs = os.path.join(directory, "runs")
        for change, line in ((lambda a: a["compute"][0].update(kind="sleep"), "/activity/compute/0/kind: expected forward, backward, selection or other, found 'sleep'"),
                             (lambda a: a["communicate"][0].update(end_s=9.0), "/activity/communicate/0: expected 0 <= begin_s <= end_s"),
                             (lambda a: a["communicate"][0].pop("stream"), "/activity/communicate/0/stream: expected an integer, found nothing"),
                             (lambda a: a.update(compute=7), "/activity/compute: expected a list, found 7")):
            for run in os.listdir(runs):
                with open(os.path.join(runs, run), encoding="utf-8") as file:
                    document = json.load(file)
                document["activity"] = activity(True)
                change(document["activity"])
                with open(os.path.join(runs, run), "w", encoding="utf-8") as file:
                    json.dump(document, file)
            status, _, err = plot(directory, "--figure", "overlap")
            self.assertEqual(status, 2)
            self.assertIn(line, err)
            self.assertEqual(err.count("\n"), 1)
        for run in os.listdir(runs):
            with open(os.path.join(runs, run), "w", encoding="utf-8") as file:
                json.dump({"schema_version": 1, "series": {}}, file)
        with self.assertRaisesRegex(NotApplicable, "earlier version"):
            drawings(directory, "overlap", "double")

    def test_drawn_again_by_its_script(self):
        directory = self.make()
        self.assertEqual(plot(directory, "--figure", "overlap", "--format", "png", "--quiet")[0], 0)
        figures = os.path.join(directory, "figures")
        out = self.path("again.png")
        subprocess.run([sys.executable, "-B", os.path.join(figures, "overlap.py"), out], check=True, capture_output=True)
        from matplotlib.image import imread

        ours, again = imread(os.path.join(figures, "overlap.png")), imread(out)
        self.assertEqual(ours.shape, again.shape)
        self.assertLess(abs(ours - again).mean(), 0.02)


if __name__ == "__main__":
    unittest.main()
