"""The report in a real browser: hover, keyboard, zoom, tables, light and dark, nothing from outside. Skipped without Chromium."""
import json
import sys
import unittest

from support import DirectoryTest

import browser
import fixture

HELPERS = """
  const one = (s, f = document) => f.querySelector(s), all = (s, f = document) => [...f.querySelectorAll(s)];
  const key = (element, name, more = {}) => element.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true, cancelable: true, ...more}));
  const tip = one("#tip"), plot = one("#speed_up .plot");
"""


class InTheBrowser(DirectoryTest):
    @classmethod
    def setUpClass(cls):
        import tempfile

        from analysis import report

        cls.temporary = tempfile.TemporaryDirectory()
        cls.results = fixture.make(cls.temporary.name + "/r", sparsifiers=("topk", "deft"), workers=(2, 16, 256))
        one = {"claim": "Top-k builds up", "source": "s", "value": {"column": "build_up_mean", "where": {"sparsifier": "topk", "workers": 16, "platform": "hdr-nvlink"}}}
        with open(cls.results + "/experiment.json", "w", encoding="utf-8") as file:
            json.dump({"claims": [{**one, "expected": 9, "within": 1}, {**one, "claim": "Top-k does not", "at_most": 1.5}]}, file)
        with open(cls.results + "/report.html", "w", encoding="utf-8") as file:
            file.write(report.page(cls.results))

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def ask(self, script, *options):
        answer = browser.run(self.results + "/report.html", HELPERS + script, self.directory, *options)
        self.assertEqual(answer["failures"], [])
        return answer["found"]

    def test_values_on_hover_and_by_keyboard(self):
        found = self.ask("""
          const data = JSON.parse(one("#speed_up script").textContent), columns = data.columns;
          const index = data.points.findIndex((p) => p[2][columns.indexOf("sparsifier")] === "deft" && p[2][columns.indexOf("workers")] === "256");
          plot.scrollIntoView();
          const point = data.points[index], at = new DOMPoint(point[0], point[1]).matrixTransform(one("svg", plot).getScreenCTM());
          plot.dispatchEvent(new PointerEvent("pointermove", {clientX: at.x + 3, clientY: at.y - 2, bubbles: true}));
          const hovered = [tip.hidden, tip.textContent];
          // Under the point lies one of the drawing's markers, which are the only <use> elements besides letters and ticks.
          const under = document.elementsFromPoint(at.x, at.y).some((e) => e.tagName.toLowerCase() === "use" && e.closest("g[id*=line2d]"));
          plot.dispatchEvent(new PointerEvent("pointermove", {clientX: at.x + 300, clientY: at.y + 500, bubbles: true}));
          const away = tip.hidden;
          plot.focus();
          key(plot, "ArrowRight"); const first = tip.textContent;
          key(plot, "ArrowRight"); const second = tip.textContent, said = one("#said").textContent;
          key(plot, "Escape");
          return {hovered, under, away, first, second, said, hidden: tip.hidden, value: point[2][columns.indexOf("value")], focusable: plot.tabIndex};""")
        hidden, text = found["hovered"]
        self.assertFalse(hidden)
        self.assertTrue(text.startswith("DEFT\n"), text)
        self.assertIn("workers: 256", text)
        self.assertIn(f"value: {float(found['value']):.6g}", text)
        self.assertTrue(found["under"])
        self.assertTrue(found["away"])
        self.assertNotEqual(found["first"], found["second"])
        self.assertEqual(found["said"], found["second"])
        self.assertTrue(found["hidden"])
        self.assertEqual(found["focusable"], 0)

    def test_zoom(self):
        found = self.ask("""
          one("#speed_up .open").click();
          const dialog = one("#zoom"), copy = one(".plot", dialog), view = () => one("svg", copy).viewBox.baseVal.width;
          const result = {open: dialog.open, focus: document.activeElement === copy, whole: view()};
          key(copy, "+"); result.nearer = view();
          copy.dispatchEvent(new WheelEvent("wheel", {deltaY: -1, clientX: 500, clientY: 400, cancelable: true})); result.wheel = view();
          key(copy, "0"); result.reset = view();
          key(copy, "ArrowRight"); result.tip = !tip.hidden && dialog.contains(tip);
          one("#close").click(); result.closed = !dialog.open;
          return result;""")
        self.assertTrue(found["open"] and found["focus"] and found["closed"] and found["tip"])
        self.assertLess(found["nearer"], found["whole"])
        self.assertLess(found["wheel"], found["nearer"])
        self.assertEqual(found["reset"], found["whole"])

    def test_tables_sort_and_filter(self):
        found = self.ask("""
          const box = one("#numbers .table"), heads = all("thead th", box), column = heads.findIndex((h) => h.textContent === "speed-up");
          const values = () => all("tbody tr", box).filter((r) => !r.hidden).map((r) => Number(r.cells[column].dataset.v ?? r.cells[column].textContent));
          const result = {all: values().length};
          one("button", heads[column]).click(); result.up = values(); result.sort = heads[column].getAttribute("aria-sort");
          one("button", heads[column]).click(); result.down = values();
          const input = one("input", box); input.value = "DEFT ethernet"; input.dispatchEvent(new Event("input"));
          result.words = all("tbody tr", box).filter((r) => !r.hidden).map((r) => r.textContent.includes("deft") && r.textContent.includes("ethernet-10g"));
          result.count = one(".count", box).textContent;
          input.value = ""; const choice = all("select", box).find((s) => [...s.options].some((o) => o.text === "256")); choice.value = "256"; choice.dispatchEvent(new Event("change"));
          result.chosen = values().length;
          return result;""")
        self.assertEqual(found["all"], 4 * 3 * 2)
        self.assertEqual(found["up"], sorted(found["up"]))
        self.assertGreater(len(set(found["up"])), 20)
        self.assertEqual(found["down"], sorted(found["up"], reverse=True))
        self.assertEqual(found["sort"], "ascending")
        self.assertEqual(found["words"], [True] * 3)
        self.assertEqual(found["count"], "3 of 24 rows")
        self.assertEqual(found["chosen"], 8)

    def test_claims(self):
        found = self.ask("""
          const box = one("#claimed .table"), mine = one("#claims .plot"), shown = () => all("tbody tr", box).filter((r) => !r.hidden).map((r) => [...r.cells].map((c) => c.textContent));
          const result = {all: shown()};
          const choice = one("select", box); choice.value = "differs"; choice.dispatchEvent(new Event("change")); result.differs = shown();
          mine.focus(); key(mine, "ArrowRight"); result.tip = tip.textContent;
          return result;""")
        self.assertEqual([row[:3] + row[4:6] for row in found["all"]], [["1", "holds", "9 ± 1", "Top-k builds up", "s"], ["2", "differs", "≤ 1.5", "Top-k does not", "s"]])
        self.assertEqual([row[0] for row in found["differs"]], ["2"])
        self.assertIn("claimed: 9", found["tip"])
        self.assertIn(f"ours: {16 ** 0.78:.6g}", found["tip"])

    def test_light_dark_and_offline(self):
        script = """
          const ground = () => getComputedStyle(document.body).backgroundColor, first = ground();
          one("#theme").click(); const second = ground(); one("#theme").click();
          const unnamed = all("button, input, select").filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label"))).length;
          const ids = all("[id]").map((e) => e.id);
          return {first, second, third: ground(), resources: performance.getEntriesByType("resource").length, unnamed, twice: ids.length - new Set(ids).size,
                  wide: document.documentElement.scrollWidth - innerWidth};"""
        found = self.ask(script)
        self.assertNotEqual(found["first"], found["second"])
        self.assertEqual(found["first"], found["third"])
        self.assertEqual((found["resources"], found["unnamed"], found["twice"]), (0, 0, 0))
        self.assertLessEqual(found["wide"], 0)
        narrow = self.ask(script, "--window-size=500,900")
        self.assertLessEqual(narrow["wide"], 0, json.dumps(narrow))


if __name__ == "__main__":
    if browser.program() is None:
        print("skipped: no Chromium here", file=sys.stderr)
        sys.exit(77)
    unittest.main()
