"""The report's text: complete, self-contained, safe against what is in the results, the same bytes every time."""
import contextlib
import html.parser
import io
import json
import os
import re
import unittest

from support import DirectoryTest

import fixture


def write(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def run(*arguments):
    from analysis import report

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = report.main(list(arguments))
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()


class Page(html.parser.HTMLParser):
    """Tags that are open, all attributes, and the text outside of scripts and styles."""

    VOID = {"meta", "input", "br", "link", "img"}

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.text, self.wrong = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


class Report(DirectoryTest):
    def make(self, name="r", **options):
        return fixture.make(self.path(name), **{"sparsifiers": ("topk", "deft"), "workers": (2, 32, 256), "platforms": ("hdr-nvlink",), **options})

    def report(self, directory):
        status, out, err = run(directory)
        path = os.path.join(directory, "report.html")
        self.assertEqual((status, out, err), (0, path + "\n", ""))
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_complete(self):
        directory = self.make()
        write(os.path.join(directory, "experiment.json"), {"schema_version": 1, "name": "e", "title": "Does DEFT pay?"})
        write(os.path.join(directory, "environment.json"), {"git_commit": "abc123", "libraries": {"simgrid": "3.32"}, "inputs_sha256": {"trace fixture-lstm": "27edaa"}})
        summary = os.path.join(directory, "summary.json")
        with open(summary, encoding="utf-8") as file:
            value = json.load(file)
        value.update(warnings=["beyond the range"], lines=["First line.", "Second line."])
        write(summary, value)
        text = self.report(directory)
        page = Page(text)
        self.assertEqual((page.open, page.wrong), ([], []))
        words = " ".join(page.text)
        for part in ("Does DEFT pay?", "First line.", "Second line.", "beyond the range", "27edaa", "abc123", "3.32", "git_commit", "libraries.simgrid", "a100-cuda", "assumed (fixture)"):
            self.assertIn(part, words)
        self.assertEqual(len(re.findall(r"<figure ", text)), 8)
        self.assertIn("Map of the fastest exchange: it needs more than one platform or density, found one of each.", words)
        data = [json.loads(match) for match in re.findall(r'<script type="application/json">(.*?)</script>', text)]
        self.assertEqual(len(data), 8)
        self.assertTrue(all(len(one["points"]) >= 8 for one in data))
        for one in data:
            self.assertTrue(all(len(point[2]) == len(one["columns"]) for point in one["points"]))

    def test_claims(self):
        directory = self.make()
        self.assertNotIn('id="claimed"', self.report(directory))
        one = {"claim": "x < y", "source": "a paper", "value": {"column": "build_up_mean", "where": {"sparsifier": "topk", "workers": 2}}}
        build_up = 2 ** 0.78
        write(os.path.join(directory, "experiment.json"), {"schema_version": 1, "name": "e", "claims": [
            {**one, "expected": 1.7, "within": 0.1}, {**one, "expected": 9, "within": 1, "differs_because": "it is another trace"}]})
        text = self.report(directory)
        page = Page(text)
        self.assertEqual((page.open, page.wrong), ([], []))
        section = re.search(r'<section id="claimed">.*?</section>', text, re.S).group(0)
        for part in ("1 of 2 hold, 1 differ for a stated reason.", "x &lt; y", "a paper", "1.7 ± 0.1", f"{build_up:.5g}", f'data-v="{build_up!r}"', "it is another trace"):
            self.assertIn(part, section)
        self.assertEqual(re.findall(r"<td>(holds|differs)</td>", section), ["holds", "differs"])
        self.assertIn('<figure id="claims">', text)
        self.assertIn('<a href="#claimed">', text)

    def test_every_axis_is_a_column(self):
        directory = self.make(seeds=(1, 2), more=("error_feedback",), change=lambda row: dict(row, error_feedback="false" if row["seed"] == 2 else "true", seed=1), break_even=False)
        numbers = re.search(r'<section id="numbers">.*?</section>', self.report(directory), re.S).group(0)
        self.assertIn('<button type="button">error feedback</button>', numbers)
        self.assertEqual(len(re.findall(r"<td>(?:true|false)</td>", numbers)), 4 * 3 * 2)

    def test_points_and_rows_are_the_csv(self):
        from analysis import plot, style
        from analysis.figures import REGISTRY
        from analysis.results import load

        directory = self.make()
        text = self.report(directory)
        for name in ("speed_up", "traffic", "breakdown"):
            one = json.loads(re.search(rf'<figure id="{name}">.*?<script type="application/json">(.*?)</script>', text, re.S).group(1))
            style.reset()
            drawing, = next(e for e in REGISTRY if e.name == name).draw(load(directory), "double")
            lines = plot.table(drawing).decode().splitlines()[1:]
            import csv

            found = sorted(one["rows"] + [point[2] for point in one["points"]])
            self.assertEqual(found, sorted(csv.reader(lines)))

    def test_nothing_from_outside(self):
        page = Page(self.report(self.make()))
        for tag, name, value in page.attributes:
            if name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
                self.assertTrue(value.startswith("#"), (tag, name, value))
        self.assertNotIn("link", [tag for tag, _, _ in page.attributes])
        self.assertIn(("meta", "http-equiv", "Content-Security-Policy"), page.attributes)

    def test_hostile_texts_stay_texts(self):
        evil = '<script>alert(1)</script>"\'&</style>'
        directory = self.make(sparsifiers=("topk", "<b>x</b>"), workers=(2, 32), change=lambda row: dict(row, trace=evil))
        summary = os.path.join(directory, "summary.json")
        with open(summary, encoding="utf-8") as file:
            value = json.load(file)
        value.update(title=evil, warnings=[evil], lines=[evil])
        write(summary, value)
        write(os.path.join(directory, "environment.json"), {evil: evil, "inputs_sha256": {evil: evil}})
        text = self.report(directory)
        page = Page(text)
        self.assertEqual((page.open, page.wrong), ([], []))
        self.assertNotIn("<script>alert", text)
        self.assertNotIn("<b>x", text)
        self.assertGreater(" ".join(page.text).count(evil), 5)

    def test_same_bytes(self):
        first, second = self.make("a"), self.make("b")
        self.assertEqual(self.report(first), self.report(second))

    def test_wrong_input(self):
        directory = self.make()
        with open(os.path.join(directory, "environment.json"), "w", encoding="utf-8") as file:
            file.write("[1]")
        self.assertEqual(run(directory), (2, "", f"sparscale: {os.path.join(directory, 'environment.json')}: expected a JSON object, found [1]\n"))
        self.assertFalse(os.path.exists(os.path.join(directory, "report.html")))
        self.assertEqual(run(self.path("none")), (2, "", f"sparscale: {self.path('none')}: expected a result directory, found nothing\n"))
        self.assertEqual(run()[0], 2)


if __name__ == "__main__":
    unittest.main()
