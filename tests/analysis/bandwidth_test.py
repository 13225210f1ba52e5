"""Answers along the bandwidth of the NICs: the search finds what closed forms say, crossings along bandwidth and density, and the program timing stored replays again."""
import json
import math
import os
import subprocess
import unittest

from compare_test import run, write
from support import DirectoryTest

import fixture

PROGRAM = os.environ.get("SPARSCALE_PROGRAM", "")


class Search(unittest.TestCase):
    def need(self, wanted, compute, time):
        from analysis import bandwidth

        asked = []

        def counted(factor):
            asked.append(factor)
            return time(factor)

        found = bandwidth.need((wanted, compute), counted)
        self.assertEqual(len(asked), len(set(asked)), "every factor is timed once")
        return found, len(asked)

    def test_closed_forms(self):
        # compute + latency + c / f: the efficiency is e at f = c / (compute / e - compute - latency).
        for wanted, compute, latency, c in ((0.9, 1.0, 0.01, 0.5), (0.5, 2.0, 0.1, 0.1), (0.999, 1.0, 0.0, 3.0), (0.2, 1.0, 1.0, 1000.0)):
            exact = c / (compute / wanted - compute - latency)
            (verdict, factor, below, known), asked = self.need(wanted, compute, lambda f: compute + latency + c / f)
            self.assertEqual(verdict, "found")
            self.assertTrue(below < exact <= factor, (below, exact, factor))
            self.assertLessEqual(factor / below, 1.01 + 1e-12)
            self.assertTrue(known[below] < wanted <= known[factor])
            self.assertLessEqual(asked, 10)

    def test_other_shapes(self):
        # Two links that bind one after the other, and a step.
        for time, exact in ((lambda f: 1 + max(0.001 / f, 0.05 / math.sqrt(f)), None), (lambda f: 1.0 if f >= 7.77 else 3.0, 7.77), (lambda f: 1.0 if f >= 0.0123 else 3.0, 0.0123)):
            (verdict, factor, below, known), asked = self.need(0.9, 1.0, time)
            self.assertEqual(verdict, "found")
            self.assertTrue(known[below] < 0.9 <= known[factor] and factor / below <= 1.01 + 1e-12)
            if exact:
                self.assertTrue(below < exact <= factor)
            self.assertLessEqual(asked, 40)

    def test_never_and_always(self):
        from analysis import bandwidth

        (verdict, factor, below, known), asked = self.need(0.9, 1.0, lambda f: 1.2 + 0.1 / f)
        self.assertEqual((verdict, factor, below, asked), ("never", None, bandwidth.LIMIT, 1))
        self.assertAlmostEqual(known[bandwidth.LIMIT], 1 / 1.2, 4)
        (verdict, factor, _, _), _ = self.need(0.9, 1.0, lambda f: 1.01)
        self.assertEqual((verdict, factor), ("smallest", bandwidth.LOWEST))


def platform(bandwidth_GBps, latency_us=20):
    return {"schema_version": 1, "description": "x", "node": {"devices": 1, "nics": {"count": 1, "bandwidth_GBps": bandwidth_GBps, "latency_us": latency_us, "provenance": {}}}, "network": {"topology": "crossbar"}}


class Crossover(DirectoryTest):
    def test_along_the_bandwidth(self):
        # Dense takes 1 + 8 / B, Top-k 2 + 2 / B: equal at B = 6.
        speeds = {"ethernet-10g": 2.0, "hdr-nvlink": 16.0}

        def times(row):
            if row["metric_group"] == "time":
                b, dense = speeds[row["platform"]], row["sparsifier"] == "dense"
                total = 1 + 8 / b if dense else 2 + 2 / b
                row.update({c: "0" for c in fixture.TIME[3:8]}, forward_backward_time_s=repr(total), iteration_time_s_mean=repr(total), iteration_time_s_p05="", iteration_time_s_p95="")
            return row

        directory = fixture.make(self.path("r"), sparsifiers=("topk",), dense=("dense",), workers=(2, 64), change=times)
        environment = os.path.join(directory, "environment.json")
        write(environment, {"platforms": {name: platform(b) for name, b in speeds.items()}})
        answers = json.loads(run("answer", "crossover", "--dir", directory, "--along", "bandwidth", "--json")[1])
        self.assertEqual([(a["workers"], a["along"], a["sparsifier"]) for a in answers], [(2, "bandwidth", "topk"), (64, "bandwidth", "topk")])
        low, high = math.log((2 + 2 / 2) / (1 + 8 / 2)), math.log((2 + 2 / 16) / (1 + 8 / 16))
        for a, counts in zip(answers, ("captured", "projected")):
            point, = a["points"]
            self.assertAlmostEqual(point["nic_bandwidth_GBps"], 2 * 8 ** (low / (low - high)))
            self.assertEqual((point["faster"], point["between"], point["counts"], a["faster_at"], a["not_faster_at"]), ("below", [2.0, 16.0], counts, [2.0], [16.0]))
        status, out, err = run("answer", "crossover", "--dir", directory, "--workers", "64")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(out.splitlines()[-1], f"ethernet-10g and its kind, density 0.01, n = 64: topk is faster than dense below {2 * 8 ** (low / (low - high)):.4g} GB/s a NIC "
                         "(between the runs at 2 and 16; projected counts).")
        self.assertEqual(len(out.splitlines()), 3)  # two platforms along n, one n along the bandwidth
        # Platforms that differ in more than that are no axis.
        write(environment, {"platforms": {name: platform(b, latency_us=b) for name, b in speeds.items()}})
        expected = f"sparscale: {os.path.join(directory, 'results.csv')}: expected platforms that differ in the bandwidth of their NICs only, found none\n"
        self.assertEqual(run("answer", "crossover", "--dir", directory, "--along", "bandwidth"), (2, "", expected))
        self.assertEqual(len(run("answer", "crossover", "--dir", directory)[1].splitlines()), 2)
        write(environment, {"git_commit": "x"})
        self.assertEqual(run("answer", "crossover", "--dir", directory, "--along", "bandwidth")[0], 2)
        self.assertEqual(len(run("answer", "crossover", "--dir", directory)[1].splitlines()), 2)

    def test_along_the_density(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk",), densities=(0.1, 0.01, 0.001), workers=(8,), platforms=("ethernet-10g",))
        answer, = json.loads(run("answer", "crossover", "--dir", directory, "--along", "density", "--json")[1])
        times = {d: sum(fixture.phases("topk", d, 8, "ethernet-10g", 1)) for d in (0.1, 0.01, 0.001)}
        dense = sum(fixture.phases("dense", 1.0, 8, "ethernet-10g", 1))
        self.assertTrue(times[0.01] < dense < times[0.1])
        gaps = [math.log(times[d] / dense) for d in (0.01, 0.1)]
        point, = answer["points"]
        self.assertAlmostEqual(point["density"], 0.01 * 10 ** (gaps[0] / (gaps[0] - gaps[1])))
        self.assertEqual((point["faster"], point["between"], answer["faster_at"], answer["workers"]), ("below", [0.01, 0.1], [0.001, 0.01], 8))


@unittest.skipUnless(PROGRAM, "SPARSCALE_PROGRAM is not set")
class Timed(DirectoryTest):
    def program(self, *arguments):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_against_the_closed_form(self):
        write(self.path("slow.json"), {
            "schema_version": 1, "name": "slow", "description": "x", "node": {"devices": 1, "nics": {"count": 1, "bandwidth_GBps": 0.05, "latency_us": 10, "provenance": dict.fromkeys(
                ("count", "bandwidth_GBps", "latency_us"), "assumed: a test")}}, "network": {"topology": "crossbar"}, "provenance": {"devices": "assumed: a test"}})
        write(self.path("e.json"), {"schema_version": 1, "name": "e", "trace": "digits-cnn-8w", "sparsifier": ["dense", "topk"], "density": 0.01, "workers": [2, 8], "iterations": 2,
                                    "platform": "slow.json", "profile": "cpu-epyc-zen5-1t", "compute": {"forward_time_s": 0.001, "backward_time_s": 0.002, "origin": "assumed: a test"}})
        directory = self.path("r")
        self.assertEqual(self.program("run", self.path("e.json"), "--out", directory, "--no-figures")[0], 0)

        def files():
            return {os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_mtime_ns for folder, _, names in os.walk(directory) for name in names}

        before = files()
        status, out, err = self.program("answer", "bandwidth", "--dir", directory, "--efficiency", "0.9", "--workers", "8", "--sparsifier", "dense", "--json")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(files(), before, "the result directory is read only")
        answer, = json.loads(out)
        self.assertEqual(answer["verdict"], "found")
        # A ring of 8: 14 steps of an eighth of 34,862 floats over two NICs, each 10 us (the latency of a route is 20 us).
        exact = 14 / 8 * 4 * 34862 / (0.003 / 0.9 - 0.003 - 14 * 20e-6) / 1e9
        self.assertLess(answer["not_enough_GBps"], exact * 1.001)
        self.assertGreater(answer["bandwidth_GBps"], exact * 0.999)
        self.assertLessEqual(answer["bandwidth_GBps"], 1.01 * answer["not_enough_GBps"] * (1 + 1e-9))
        # Top-k's exchange of counts, indices and values has more latency than 0.97 leaves.
        answer, = json.loads(self.program("answer", "bandwidth", "--dir", directory, "--efficiency", "0.97", "--workers", "8", "--sparsifier", "topk", "--json")[1])
        self.assertEqual((answer["verdict"], next(iter(answer["bound_s"]))), ("never", "latency"))
        self.assertAlmostEqual(sum(answer["bound_s"].values()) + answer["compute_s"], answer["shortest_iteration_s"], 9)
        self.assertAlmostEqual(answer["largest_efficiency"], 0.003 / answer["shortest_iteration_s"], 9)
        status, out, err = self.program("answer", "bandwidth", "--dir", directory, "--efficiency", "0.97", "--workers", "8", "--sparsifier", "topk")
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"^slow, density 0\.01: topk at n = 8 does not get to 0\.97 whatever the NICs' bandwidth: the bound is 0\.\d+, set by latency \(beside 3 ms of forward and backward: .*\n$")
        # Another timeline is timed as such: buckets leave while the backward pass goes on, so that less bandwidth is needed.
        with open(self.path("e.json"), encoding="utf-8") as file:
            experiment = json.load(file)
        write(self.path("f.json"), {**experiment, "name": "f", "sparsifier": "dense", "timeline": {"mode": "ddp_buckets", "layer_times": "by_elements", "bucket_bytes": 70000, "first_bucket_bytes": 70000}})
        self.assertEqual(self.program("run", self.path("f.json"), "--out", self.path("s"), "--no-figures")[0], 0)
        status, out, err = self.program("answer", "bandwidth", "--dir", self.path("s"), "--efficiency", "0.8", "--workers", "8", "--json")
        self.assertEqual((status, err), (0, ""))
        overlapped, = json.loads(out)
        self.assertEqual(overlapped["verdict"], "found")
        self.assertLess(overlapped["bandwidth_GBps"], 14 / 8 * 4 * 34862 / (0.003 / 0.8 - 0.003 - 14 * 20e-6) / 1e9)
        for arguments, expected in ((("--workers", "4"), "a number of workers out of 2, 8, found 4"), (("--workers", "8", "--sparsifier", "deft"), "a sparsifier out of dense, topk, found deft")):
            status, out, err = self.program("answer", "bandwidth", "--dir", directory, "--efficiency", "0.9", *arguments)
            self.assertEqual((status, out, err), (2, "", f"sparscale: {os.path.join(directory, 'results.csv')}: expected {expected}\n"))
        for efficiency in ("0", "1", "nan", "x"):
            status, out, err = self.program("answer", "bandwidth", "--dir", directory, "--workers", "8", "--efficiency", efficiency)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1))
        # Results that this program would not give are no ground for an answer.
        environment = os.path.join(directory, "environment.json")
        with open(environment, encoding="utf-8") as file:
            value = json.load(file)
        value["platforms"]["slow"]["node"]["nics"]["bandwidth_GBps"] = 0.06
        write(environment, value)
        status, out, err = self.program("answer", "bandwidth", "--dir", directory, "--efficiency", "0.9", "--workers", "8", "--sparsifier", "dense")
        self.assertEqual((status, out, err.count("\n")), (1, "", 1))
        self.assertIn("run the experiment again first", err)
        del value["platforms"]
        write(environment, value)
        status, out, err = self.program("answer", "bandwidth", "--dir", directory, "--efficiency", "0.9", "--workers", "8")
        self.assertEqual((status, out, err.count("\n")), (2, "", 1))
        self.assertIn("/platforms: expected the platforms of the runs", err)


if __name__ == "__main__":
    unittest.main()
