"""The LaTeX tables go through pdflatex without a complaint. Skipped without pdflatex."""
import os
import shutil
import subprocess
import sys
import unittest

from support import DirectoryTest, plot

import fixture


class Latex(DirectoryTest):
    def test_tables_compile(self):
        directory = fixture.make(self.path("r"), sparsifiers=("topk", "my_own&50%#$^~\\{}"), densities=(0.1, 0.01), parameters={"topk": ["{}", '{"a_b":"x & y"}']}, workers=(2, 32, 256))
        self.assertEqual(plot(directory, "--format", "svg")[0], 0)
        tables = sorted(os.listdir(os.path.join(directory, "tables")))
        self.assertEqual(len(tables), 4)
        inputs = "\n".join(rf"\input{{r/tables/{name}}}" for name in tables)
        with open(self.path("t.tex"), "w", encoding="utf-8") as file:
            file.write(r"\documentclass{article}\usepackage[margin=1cm,landscape]{geometry}\usepackage{booktabs}\begin{document}" + f"\n{inputs}\n" + r"\end{document}" + "\n")
        done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"], capture_output=True, text=True, check=False, cwd=self.directory)
        self.assertEqual(done.returncode, 0, done.stdout[-800:])
        self.assertNotIn("Missing character", done.stdout)
        self.assertNotIn("Overfull", done.stdout)
        self.assertIn("Output written on t.pdf", done.stdout)


if __name__ == "__main__":
    if shutil.which("pdflatex") is None:
        print("skipped: no pdflatex here", file=sys.stderr)
        sys.exit(77)
    unittest.main()
