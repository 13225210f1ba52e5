"""Claims of an experiment against its results: right values, right outcomes, one line for wrong input."""
import csv
import json
import os
import subprocess
import unittest

from compare_test import run
from support import DirectoryTest

import fixture
from analysis import results as result_files


class Claims(DirectoryTest):
    def make(self, *claims, **options):
        directory = fixture.make(self.path("r"), **{"sparsifiers": ("topk", "micro"), "workers": (2, 64), "platforms": ("hdr-nvlink",), "runs": True, **options})
        with open(os.path.join(directory, "experiment.json"), "w", encoding="utf-8") as file:
            json.dump({"claims": [{"claim": "c", "source": "s", **claim} for claim in claims]}, file)
        return directory

    def table(self, directory):
        with open(os.path.join(directory, "tables", "claims.csv"), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_outcomes(self):
        at = {"sparsifier": "micro", "workers": 64}
        one = {"column": "build_up_mean", "where": at}
        directory = self.make({"value": one, "expected": 0.95, "within": 0.01}, {"value": one, "expected": 0.96, "within": 0.01, "differs_because": "it is so"},
                              {"value": one, "at_least": 0.94, "at_most": 0.95}, {"value": one, "at_most": 0.9399999},
                              {"value": {"column": "build_up_mean", "where": {"sparsifier": "deft"}}, "at_least": 0})
        status, out, err = run("claims", directory)
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(out.splitlines(), [
            "holds          0.94  claimed 0.95 ± 0.01: c [s]", "differs        0.94  claimed 0.96 ± 0.01: c [s]", "                     it is so",
            "holds          0.94  claimed ≥ 0.94 and ≤ 0.95: c [s]", "differs        0.94  claimed ≤ 0.94: c [s]", "not run           -  claimed ≥ 0: c [s]",
            "Claims: 2 of 5 hold, 1 differ for a stated reason, 1 differ, 1 not run."])
        rows = self.table(directory)
        self.assertEqual([row["outcome"] for row in rows], ["holds", "differs", "holds", "differs", "not run"])
        self.assertEqual([row["value"] for row in rows], ["0.94"] * 4 + [""])
        self.assertTrue(rows[0]["runs"] and not rows[4]["runs"])
        self.assertEqual(run("claims", directory, "--strict")[0], 1)
        self.assertEqual(run("claims", self.make({"value": one, "expected": 1, "within": 0, "differs_because": "x"}), "--strict")[0], 0)

    def test_ratios_and_several_runs(self):
        k = fixture.selection("topk", 0.01, 2, 1)[0]
        term = {"column": "target_k", "where": {"sparsifier": "topk", "workers": [2, 64]}}
        bytes_ = {"column": "bytes_sent_per_worker_mean", "where": {"sparsifier": "topk"}}
        directory = self.make({"value": {**bytes_, "reduce": "max"}, "over": {**bytes_, "reduce": "min"}, "expected": 32, "within": 0},
                              {"value": {**bytes_, "reduce": "mean"}, "over": 1e6, "expected": 33, "within": 1e-9}, {"value": {**term, "reduce": "min"}, "expected": k, "within": 0})
        status, out, _ = run("claims", directory)
        self.assertEqual((status, out.splitlines()[-1]), (0, "Claims: 3 of 3 hold."))

    def test_failures_are_said(self):
        """What failed is not in a claim's number: the claims that it may belong to say so."""
        mean = {"column": "build_up_mean", "reduce": "mean"}
        directory = self.make({"value": {**mean, "where": {"sparsifier": "micro", "workers": [2, 64]}}, "at_least": 0}, {"value": {**mean, "where": {"sparsifier": "topk"}}, "at_least": 0},
                              {"value": {**mean, "where": {"workers": 2}}, "over": {**mean, "where": {"seed": 3, "workers": 64}}, "at_least": 0})
        os.mkdir(os.path.join(directory, "failed"))
        for name, identity in (("a", {"kind": "replay", "sparsifier": "micro", "workers": 64, "seed": 2}), ("b", {"kind": "run", "sparsifier": "micro", "workers": 64, "seed": 3, "network": "auto"})):
            with open(os.path.join(directory, "failed", name + ".json"), "w", encoding="utf-8") as file:
                json.dump({"schema_version": 1, "program_sha256": "0", "identity": identity, "what": "x", "reason": "y"}, file)
        status, out, err = run("claims", directory)
        self.assertEqual((status, err), (0, ""))
        lines = out.splitlines()
        self.assertEqual(lines[1], " " * 21 + "2 that failed and may belong to it are left out (sparscale status)")
        self.assertTrue(lines[2].startswith("holds") and lines[3].startswith("not run"), out)
        self.assertEqual(lines[4], " " * 21 + "1 that failed and may belong to it is left out (sparscale status)")
        self.assertEqual([row["failures"] for row in self.table(directory)], ["2", "", "1"])

    def test_series(self):
        where = {"sparsifier": "micro", "workers": 2}
        with open(os.path.join(self.make(), "results.csv"), encoding="utf-8", newline="") as file:
            run_id = next(row["run_id"] for row in csv.DictReader(file) if (row["sparsifier"], row["workers"], row["metric_group"]) == ("micro", "2", "time"))
        with open(self.path("r", "runs", run_id + ".json"), encoding="utf-8") as file:
            padding = json.load(file)["series"]["padding"]
        directory = self.make({"value": {"series": "padding", "where": where, "from": 5, "to": 15}, "expected": sum(padding[5:15]) / 10, "within": 1e-12},
                              {"value": {"series": "padding", "where": where}, "expected": sum(padding) / 20, "within": 1e-12})
        self.assertEqual(run("claims", directory)[1].splitlines()[-1], "Claims: 2 of 2 hold.")

    def test_parameters_tell_runs_apart(self):
        text = '{"micro_rule":"intended"}'
        value = {"column": "build_up_mean", "where": {"sparsifier": "micro", "workers": 2}}
        other = {"column": "build_up_mean", "where": {"sparsifier": "micro", "workers": 2, "parameters": {"micro_rule": "intended"}}}
        plain = {"column": "build_up_mean", "where": {"sparsifier": "micro", "workers": 2, "parameters": {}}}
        options = {"parameters": {"micro": ["{}", text]}}
        directory = self.make({"value": other, "over": plain, "expected": 1.25, "within": 1e-12}, **options)
        self.assertEqual(run("claims", directory)[1].splitlines()[-1], "Claims: 1 of 1 hold.")
        directory = self.make({"value": value, "at_least": 0}, **options)
        self.assertEqual(run("claims", directory), (2, "", f'sparscale: {directory}/experiment.json: /claims/0/value/where: expected what only one run has, or "reduce", found 2 runs\n'))

    def test_every_key_column_can_be_named(self):
        value = {"column": "bytes_sent_per_worker_mean", "where": {"sparsifier": "topk", "workers": 64, "validated": True, "seed": 1, "expansion": ["hybrid", "boot"], "density": 0.01}}
        other = {**value, "where": {**value["where"], "validated": False}}
        directory = self.make({"value": value, "expected": 64e6, "within": 0}, {"value": other, "at_least": 0})
        self.assertEqual(run("claims", directory)[1].splitlines()[-1], "Claims: 1 of 2 hold, 1 not run.")

    def test_later_columns(self):
        def change(row):
            later = row["sparsifier"] == "micro"
            return {**row, "labels": '{"machine":"B","x":"y"}' if later else '{"machine":"A"}', "error_feedback": "false" if later else "true",
                    "forward_time_s": "0.02", "value_encoding": "fp16" if later else "fp32"}

        claims = [{"value": {"column": "build_up_mean", "where": {"workers": 64, **where}}, "expected": 0.94, "within": 1e-9}
                  for where in ({"labels": {"machine": "B"}}, {"error_feedback": False}, {"value_encoding": "fp16", "forward_time_s": 0.02})]
        directory = self.make(*claims, {"value": {"column": "build_up_mean", "where": {"labels": {"machine": "C"}}}, "at_least": 0},
                              change=change, dense=(), more=("labels", "error_feedback", "forward_time_s", "value_encoding"))
        self.assertEqual(run("claims", directory)[1].splitlines()[-1], "Claims: 3 of 4 hold, 1 not run.")

    @unittest.skipUnless(os.environ.get("SPARSCALE_PROGRAM"), "SPARSCALE_PROGRAM is not set")
    def test_every_column_of_numbers_is_known(self):
        """A claim may name any of them."""
        listing = subprocess.run([os.environ["SPARSCALE_PROGRAM"], "list", "columns"], capture_output=True, text=True, check=True).stdout
        names = {line.split()[0] for line in listing.splitlines() if line.split()[1] in result_files.GROUPS}
        self.assertGreater(len(names), 40)
        known = sum(result_files.GROUPS.values(), ()) + sum(result_files.OPTIONAL.values(), ())
        self.assertEqual(names - set(known), set())

    def test_wrong_input(self):
        where = {"sparsifier": "topk", "workers": 2}
        for value, expected in (({"column": "speed", "where": where}, "/claims/0/value/column: expected a column of results.csv, found 'speed'"),
                                ({"column": "speed_up", "where": {"build_up_mean": 2}}, "/claims/0/value/where/build_up_mean: expected a key column of results.csv, found none"),
                                ({"column": "speed_up", "where": {"nodes": 2}}, "/claims/0/value/where/nodes: expected a key column of results.csv, found none"),
                                ({"series": "padding", "where": where, "from": 5, "to": 21}, "/claims/0/value/to: expected from < to <= the 20 recorded iterations, found 5 and 21")):
            directory = self.make({"value": value, "at_least": 0})
            self.assertEqual(run("claims", directory), (2, "", f"sparscale: {directory}/experiment.json: {expected}\n"))
        directory = self.make()
        self.assertEqual(run("claims", directory), (2, "", f"sparscale: {directory}/experiment.json: /claims: expected a list of claims, found none\n"))
        self.assertEqual(run("claims", directory, "--quiet"), (0, "", ""))


if __name__ == "__main__":
    unittest.main()
