"""Comparing two result directories, and answers from one: right differences, right crossings, one line for wrong input."""
import contextlib
import csv
import io
import json
import math
import os
import subprocess
import sys
import unittest

from support import DirectoryTest, ROOT

import fixture


def run(program, *arguments):
    import importlib

    module = importlib.import_module("analysis." + program)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = module.main(list(arguments))
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()


def write(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


class Compare(DirectoryTest):
    def make(self, name, **options):
        return fixture.make(self.path(name), **{"sparsifiers": ("topk", "deft"), "workers": (2, 32, 256), "platforms": ("hdr-nvlink",), **options})

    def compare(self, *arguments):
        status, out, err = run("compare", *arguments, "--json", "-")
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)

    def test_same(self):
        a, b = self.make("a"), self.make("b")
        status, out, err = run("compare", a, b)
        self.assertEqual((status, err), (0, ""))
        self.assertTrue(out.endswith("All numbers of the runs in both are the same.\nSame results.\n"), out)
        self.assertIn("Runs in both: 12; only in A: 0; only in B: 0\n", out)
        self.assertTrue(self.compare(a, b)["same"])

    def test_numbers(self):
        def slower(row):
            if row["metric_group"] == "traffic" and row["sparsifier"] == "deft":
                row["messages_mean"] = repr(float(row["messages_mean"]) * {2: 1.5, 32: 2.0, 256: 1.0}[row["workers"]])
            return row

        a, b = self.make("a"), self.make("b", change=slower)
        found = self.compare(a, b)
        metric, = found["metrics"]
        self.assertEqual((metric["metric"], metric["differ"], metric["compared"]), ("messages_mean", 2, 12))
        self.assertEqual((metric["lowest_ratio"], metric["highest_ratio"], metric["median_ratio"]), (1.5, 2.0, 1.75))
        self.assertEqual(metric["highest_at"], "deft, n = 32, density 0.01, hdr-nvlink")
        self.assertFalse(found["same"])
        path = self.path("d.csv")
        self.assertEqual(run("compare", a, b, "--csv", path)[0], 0)
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(r["sparsifier"], r["workers"], r["metric"], float(r["a"]), float(r["b"]), float(r["difference"]), float(r["ratio"])) for r in rows],
                         [("deft", "2", "messages_mean", 4.0, 6.0, 2.0, 1.5), ("deft", "32", "messages_mean", 64.0, 128.0, 64.0, 2.0)])
        self.assertEqual(self.compare(a, b, "--tolerance", "0.4")["metrics"][0]["differ"], 1)
        self.assertEqual(self.compare(a, b, "--tolerance", "0.5")["metrics"], [])

    def test_inputs_and_experiment(self):
        a, b = self.make("a"), self.make("b")
        for directory, digest, density in ((a, "aa", 0.01), (b, "bb", 0.02)):
            write(os.path.join(directory, "environment.json"), {"git_commit": digest, "host": digest, "inputs_sha256": {"trace t": digest, "platform p": "same"}})
            write(os.path.join(directory, "experiment.json"), {"name": "e", "density": density, "compute": {"forward_time_s": density}})
        found = self.compare(a, b)
        self.assertEqual(found["inputs"], [{"input": "trace t", "a": "aa", "b": "bb"}])
        self.assertEqual(found["program"], [{"what": "/git_commit", "a": "aa", "b": "bb"}])
        self.assertEqual(found["machine"], [{"what": "/host", "a": "aa", "b": "bb"}])
        self.assertEqual([e["key"] for e in found["experiment"]], ["/density", "/compute/forward_time_s"])
        self.assertFalse(found["same"])

    def test_other_axes_tell_runs_apart(self):
        def without_feedback(row):
            return dict(row, error_feedback="false" if row["seed"] == 2 else "true", seed=1)

        def slower(row):
            row = without_feedback(row)
            if row["metric_group"] == "selection" and row["error_feedback"] == "false" and row["workers"] == 4 and row["sparsifier"] == "topk":
                row["threshold_mean"] = "0.025"
            return row

        options = {"sparsifiers": ("topk",), "platforms": ("hdr-nvlink",), "workers": (2, 4), "seeds": (1, 2), "more": ("error_feedback",)}
        a, b = fixture.make(self.path("a"), change=without_feedback, **options), fixture.make(self.path("b"), change=slower, **options)
        self.assertEqual(run("compare", a, a)[1].splitlines()[-1], "Same results.")
        status, _, err = run("compare", a, b, "--json", self.path("c.json"))
        self.assertEqual((status, err), (0, ""))
        with open(self.path("c.json"), encoding="utf-8") as file:
            found = json.load(file)
        self.assertEqual([(m["metric"], m["differ"], m["median_ratio"]) for m in found["metrics"]], [("threshold_mean", 1, 2.0)])
        # A directory of an earlier version does not say it, which is no difference.
        c, d = (fixture.make(self.path(name), change=lambda row: dict(row, **more), **{**options, "seeds": (1,), "more": tuple(more)}) for name, more in (("c", {}), ("d", {"error_feedback": "true"})))
        self.assertEqual(run("compare", c, d)[1].splitlines()[-1], "Same results.")

    def test_runs_in_one_only(self):
        found = self.compare(self.make("a", sparsifiers=("topk",)), self.make("b", workers=(2, 32)))
        self.assertEqual(found["matched_runs"], 6)
        self.assertEqual(found["only_in_a"], [f"{s}, n = 256, {d}hdr-nvlink" for s, d in (("dense", ""), ("dense_fp16", ""), ("topk", "density 0.01, "))])
        self.assertEqual(found["only_in_b"], ["deft, n = 2, density 0.01, hdr-nvlink", "deft, n = 32, density 0.01, hdr-nvlink"])
        self.assertEqual(found["metrics"], [])

    def test_another_platform_is_matched_and_said(self):
        found = self.compare(self.make("a", platforms=("ethernet-10g",)), self.make("b"))
        self.assertEqual(found["matched_without"], {"platform": {"a": "ethernet-10g", "b": "hdr-nvlink"}})
        self.assertEqual(found["matched_runs"], 12)
        self.assertIn("iteration_time_s_mean", [m["metric"] for m in found["metrics"]])
        self.assertNotIn("build_up_mean", [m["metric"] for m in found["metrics"]])

    def test_wrong_input(self):
        a = self.make("a")
        none = self.path("none")
        self.assertEqual(run("compare", a, none), (2, "", f"sparscale: {none}: expected a result directory, found nothing\n"))
        self.assertEqual(run("compare", a)[0], 2)
        self.assertEqual(run("compare", a, a, "--tolerance", "-1")[0], 2)

    def test_without_matplotlib(self):
        a = self.make("a")
        program = ("import sys; sys.modules['matplotlib'] = None; sys.modules['numpy'] = None; import runpy;"
                   f"sys.argv = ['compare.py', {a!r}, {a!r}]; runpy.run_path({os.path.join(ROOT, 'analysis', 'compare.py')!r}, run_name='__main__')")
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Answer(DirectoryTest):
    def test_crossover_is_the_summary_s_break_even(self):
        directory = fixture.make(self.path("r"))
        answers = json.loads(run("answer", "crossover", "--dir", directory, "--json")[1])
        with open(os.path.join(directory, "summary.json"), encoding="utf-8") as file:
            entries = {(e["platform"], e["sparsifier"]): e for e in json.load(file)["break_even"] if e["baseline"] == "dense"}
        self.assertEqual(len(answers), len(entries))
        crossed = 0
        for a in answers:
            e = entries[a["platform"], a["sparsifier"]]
            self.assertEqual(len(a["points"]), len(e["points"]))
            for p, q in zip(a["points"], e["points"]):
                self.assertAlmostEqual(p["workers"], q["workers"])
                self.assertEqual("wins_" + p["faster"], q["direction"])
                self.assertTrue(p["between"][0] < p["workers"] < p["between"][1])
                crossed += 1
            self.assertEqual((a["faster_at"], a["not_faster_at"]), (e["wins_at"], e["loses_at"]))
        self.assertGreaterEqual(crossed, 2)

    def test_crossover_against_another_sparsifier(self):
        # By hand: 8 + 4 n against 20 + n cross at n = 4, where both are 24.
        def lines(row):
            if row["metric_group"] == "time" and row["sparsifier"] in ("topk", "deft"):
                n = row["workers"]
                total = 8 + 4 * n if row["sparsifier"] == "topk" else 20 + n
                row.update({c: "0" for c in fixture.TIME[3:8]}, forward_backward_time_s=repr(float(total)), iteration_time_s_mean=repr(float(total)), iteration_time_s_p05="", iteration_time_s_p95="")
            return row

        directory = fixture.make(self.path("r"), sparsifiers=("topk", "deft"), platforms=("hdr-nvlink",), workers=(2, 8, 32), change=lines)
        answer, = json.loads(run("answer", "crossover", "--dir", directory, "--sparsifier", "deft", "--against", "topk", "--json")[1])
        # Interpolated between n = 2 (22 against 16) and n = 8 (28 against 40) in both logarithms.
        low, high = math.log(22 / 16), math.log(28 / 40)
        self.assertAlmostEqual(answer["points"][0]["workers"], 2 * 4 ** (low / (low - high)))
        self.assertEqual((answer["points"][0]["faster"], answer["points"][0]["counts"], answer["faster_at"], answer["not_faster_at"]), ("above", "captured", [8, 32], [2]))
        text = run("answer", "crossover", "--dir", directory, "--sparsifier", "deft", "--against", "topk")[1]
        self.assertRegex(text, r"deft is faster than topk above n = \d\.\d+ \(between the runs at 2 and 8; captured counts\)\.\n$")

    def test_best_is_sorted_and_says_why(self):
        directory = fixture.make(self.path("r"))
        answer, = json.loads(run("answer", "best", "--dir", directory, "--platform", "ethernet-10g", "--workers", "64", "--json")[1])
        times = [r["iteration_time_s"] for r in answer["ranking"]]
        self.assertEqual(len(times), 8)
        self.assertEqual(times, sorted(times))
        with open(os.path.join(directory, "results.csv"), encoding="utf-8") as file:
            truth = {r["sparsifier"]: float(r["iteration_time_s_mean"]) for r in csv.DictReader(file) if (r["metric_group"], r["platform"], r["workers"]) == ("time", "ethernet-10g", "64")}
        self.assertEqual({r["sparsifier"]: r["iteration_time_s"] for r in answer["ranking"]}, truth)
        why = {r["sparsifier"]: "; ".join(r["reasons"]) for r in answer["ranking"]}
        up = fixture.selection("topk", 0.01, 64, 1)[1]
        self.assertIn(f"build-up: the union of the selections is {up:.3g} times the wanted k", why["topk"])
        self.assertNotIn("build-up", why["exdyna"])
        self.assertIn("imbalance: the largest selection of a worker is 1.63 times the mean", why["sage"])  # 1.15 + 0.08 x 6, a ring that does not pad
        self.assertNotIn("imbalance", why["topk"])

    def test_wrong_input(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",), workers=(2, 4), platforms=("hdr-nvlink",))
        table = os.path.join(directory, "results.csv")
        for arguments, expected in ((("best", "--platform", "x"), "a platform out of hdr-nvlink, found x"), (("best", "--workers", "3"), "a number of workers out of 2, 4, found 3"),
                                    (("crossover", "--sparsifier", "deft"), "a sparsifier out of topk, dense, dense_fp16, found deft"),
                                    (("crossover", "--against", "deft"), "a sparsifier out of topk, dense, dense_fp16, found deft")):
            self.assertEqual(run("answer", *arguments, "--dir", directory), (2, "", f"sparscale: {table}: expected {expected}\n"))
        for arguments in ((), ("why",), ("best",), ("best", "--dir", directory, "--workers", "many")):
            status, out, err = run("answer", *arguments)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1))


if __name__ == "__main__":
    unittest.main()
