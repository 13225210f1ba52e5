"""The figure of a comparison with real machines: every row at its place, series told apart, wrong files refused in one line."""
import csv
import os
import subprocess
import sys
import unittest

from support import DirectoryTest

PROGRAM = os.environ.get("SPARSCALE_PROGRAM", "")


@unittest.skipUnless(PROGRAM, "needs the program")
class Figure(DirectoryTest):
    def axes(self, what):
        from analysis import validation

        folder = os.path.join(self.directory, what)
        subprocess.run([PROGRAM, "validate", what, "--no-figure", "--out", folder], check=True, stdout=subprocess.DEVNULL)
        path = os.path.join(folder, "validation.csv")
        return validation.draw(validation.read(path)).axes[0], path

    @staticmethod
    def points(axes):
        return [(line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor() == "white") for line in axes.lines if line.get_linestyle() == "None"]

    def test_series(self):
        axes, path = self.axes("mpi")
        self.assertEqual(axes.get_ylabel(), "simulated / measured")
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        points = self.points(axes)
        self.assertEqual(len(points), 126)
        for row, (x, y, hollow) in zip(rows, points):
            self.assertAlmostEqual(x, 1e3 * float(row["measured_s"]))
            self.assertAlmostEqual(y, float(row["simulated_s"]) / float(row["measured_s"]))
            self.assertEqual(hollow, row["series"] == "given")
        levels = {line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2 and line.get_ydata()[0] == line.get_ydata()[1]}
        self.assertTrue({0.95, 1, 1.05} <= levels, levels)

    def test_public_points(self):
        axes, path = self.axes("nccl")
        self.assertEqual(axes.get_ylabel(), "simulated [ms]")
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        points = self.points(axes)
        self.assertEqual(len(points), 54)
        for row, (x, y, hollow) in zip(rows, points):
            self.assertAlmostEqual(x, 1e3 * float(row["measured_s"]))
            self.assertAlmostEqual(y, 1e3 * float(row["simulated_s"]))
            self.assertEqual(hollow, row["use"] != "compared")
        missed = [row for row in rows if row["why_missed"]]
        self.assertEqual([abs(float(row["error"])) > 0.25 for row in missed], [True] * 4)

    def test_wrong_file(self):
        tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "analysis", "validation.py")
        path = os.path.join(self.directory, "validation.csv")
        for text in ("", "measured_s\n1\n", "measured_s,simulated_s,platform,op,use\nx,1,p,o,compared\n"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            ran = subprocess.run([sys.executable, "-B", tool, self.directory], capture_output=True, text=True, check=False)
            self.assertEqual((ran.returncode, ran.stderr.count("\n")), (2, 1), ran.stderr)


if __name__ == "__main__":
    unittest.main()
