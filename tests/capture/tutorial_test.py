"""docs/tutorial.md does what it says: its blocks run one after another, as a newcomer would type them."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAM = os.environ.get("SPARSCALE_PROGRAM", "")


class Tutorial(unittest.TestCase):
    def test_every_block(self):
        try:
            import sklearn  # noqa: F401
        except ImportError:
            self.skipTest("no scikit-learn here")
        with open(os.path.join(ROOT, "docs", "tutorial.md"), encoding="utf-8") as file:
            blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.M | re.S)
        self.assertGreaterEqual(len(blocks), 5)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as programs:
            # The python3 of the page is the interpreter of this test, which has PyTorch.
            with open(os.path.join(programs, "python3"), "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            os.chmod(file.name, 0o755)
            environment = {**os.environ, "SPARSCALE": ROOT, "OMP_NUM_THREADS": "1",
                           "PATH": os.pathsep.join([programs, os.path.dirname(PROGRAM), os.environ["PATH"]])}
            said = []
            for block in blocks:
                done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", block], cwd=folder, env=environment, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, f"{block}\n{done.stdout}{done.stderr}")
                said.append(done.stdout)
            self.assertIn("verified: 8 workers x 12 iterations x 9610 gradients", said[1])
            self.assertIn('"workers":64', said[2].replace(" ", ""))
            self.assertIn("Figures: results/figures", said[3])
            with open(os.path.join(folder, "results", "results.csv"), encoding="utf-8") as file:
                # 4 exchanges, 4 numbers of workers, 2 platforms, 3 groups of metrics, a header.
                self.assertEqual(len(file.readlines()), 4 * 4 * 2 * 3 + 1)
            self.assertTrue(os.path.exists(os.path.join(folder, "results", "report.html")))


if __name__ == "__main__":
    unittest.main()
