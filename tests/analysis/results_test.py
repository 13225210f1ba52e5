"""Wrong result directories: one line that names file, place, what was expected and what was found; exit status 2; nothing written."""
import csv
import json
import os
import random
import unittest

from support import DirectoryTest, plot, plot_process

import fixture


class WrongInput(DirectoryTest):
    def setUp(self):
        super().setUp()
        self.results = fixture.make(self.path("r"), workers=(2, 4, 32), platforms=("hdr-nvlink",), sparsifiers=("topk", "deft"))
        self.table, self.summary = os.path.join(self.results, "results.csv"), os.path.join(self.results, "summary.json")

    def refuse(self, file, place, expected, found, *arguments, directory=None):
        status, out, err = plot(directory or self.results, "--format", "png", *arguments)
        parts = [part for part in (file, place) if part]
        self.assertEqual(err, f"sparscale: {': '.join(parts)}: expected {expected}, found {found}\n")
        self.assertEqual((status, out), (2, ""))
        self.assertFalse(os.path.exists(os.path.join(self.results, "figures")))

    def change(self, number, **cells):
        """Changes cells of a row, counted from 0; returns its line in the file."""
        with open(self.table, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        rows[number].update(cells)
        with open(self.table, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fixture.COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return number + 2

    def edit_summary(self, change):
        with open(self.summary, encoding="utf-8") as file:
            value = json.load(file)
        change(value)
        with open(self.summary, "w", encoding="utf-8") as file:
            json.dump(value, file)

    def test_directory(self):
        self.refuse(self.path("none"), "", "a result directory", "nothing", directory=self.path("none"))
        self.refuse(self.table, "", "a result directory", "a file", directory=self.table)

    def test_files(self):
        os.rename(self.summary, self.summary + "x")
        self.refuse(self.summary, "", "a file", "none")
        os.remove(self.table)
        self.refuse(self.table, "", "a file", "none")
        os.mkdir(self.table)
        self.refuse(self.table, "", "a readable file", "Is a directory")

    def test_header(self):
        for column in ("workers", "build_up_p05", "bytes_sent_per_worker_max"):
            with self.subTest(column):
                with open(self.table, encoding="utf-8") as file:
                    text = file.read()
                with open(self.table, "w", encoding="utf-8") as file:
                    file.write(text.replace(column, "other", 1))
                self.refuse(self.table, "line 1", f"a column {column}", "none")
                with open(self.table, "w", encoding="utf-8") as file:
                    file.write(text)
        with open(self.table, "w", encoding="utf-8") as file:
            file.write(text.replace("seed", "workers", 1))
        self.refuse(self.table, "line 1", "every column once", "'workers' twice")
        with open(self.table, "w", encoding="utf-8") as file:
            file.write(text.split("\n")[0] + "\n")
        self.refuse(self.table, "line 2", "at least one row", "none")
        with open(self.table, "w", encoding="utf-8"):
            pass
        self.refuse(self.table, "line 1", "a header", "nothing")

    def test_cells(self):
        for number, column, cell, expected in (
                (0, "workers", "two", "an integer"), (0, "workers", "0", "an integer from 1 to 2147483647"), (0, "workers", "2.0", "an integer"),
                (0, "validated", "True", "true or false"), (0, "density", "1.5", "a number above 0 and at most 1"),
                (0, "density", "", "a number"), (0, "metric_group", "times", "one of selection, time, traffic"),
                (0, "counts_origin", "guessed", "one of captured, projected"), (0, "parameters", "[1]", "a JSON object"),
                (0, "parameters", '{"a":NaN}', "a JSON object"), (1, "platform", "", "a value"), (0, "trace", "", "a value"),
                (0, "union_mean", "many", "a finite number or nothing"), (0, "union_mean", "inf", "a finite number or nothing"),
                (0, "union_mean", "1_0", "a finite number or nothing"), (1, "speed_up", "-1", "a number of at least 0")):
            with self.subTest(column=column, cell=cell):
                fixture.make(self.results, workers=(2, 4, 32), platforms=("hdr-nvlink",), sparsifiers=("topk", "deft"))
                line = self.change(number, **{column: cell})
                self.refuse(self.table, f"line {line}, column {column}", expected, repr(cell))

    def test_phases_that_do_not_add_up(self):
        line = self.change(1, other_time_s="0.5")
        status, _, err = plot(self.results)
        self.assertEqual(status, 2)
        self.assertRegex(err, rf"line {line}, column iteration_time_s_mean: expected the sum of the five phases, 0\.56\d+, found '0\.06\d+'\n$")

    def test_quantiles_in_the_wrong_order(self):
        line = self.change(0, build_up_p05="3", build_up_p95="2")
        self.refuse(self.table, f"line {line}, column build_up_p05", "at most its 95 % quantile, 2", "'3'")

    def test_short_row_and_bytes(self):
        with open(self.table, "a", encoding="utf-8") as file:
            file.write("a,b\n")
        count = 5 * 0 + 4 * 3 * 3 + 2
        self.refuse(self.table, f"line {count}", f"{len(fixture.COLUMNS)} cells", "2")
        with open(self.table, "wb") as file:
            file.write(b"run_id\xff")
        self.refuse(self.table, "byte 6", "UTF-8 text", "byte 0xff")

    def test_rows_that_contradict_each_other(self):
        with open(self.table, encoding="utf-8") as file:
            text = file.read()
        lines = text.rstrip("\n").split("\n")
        last = [line for line in lines if ",selection," in line and ",deft," in line][-1]
        with open(self.table, "a", encoding="utf-8") as file:
            file.write(last + "\n")
        self.assertEqual(plot(self.results, "--format", "svg", "--figure", "build_up")[0], 0)  # the same twice is no contradiction
        for name in os.listdir(os.path.join(self.results, "figures")):
            os.remove(os.path.join(self.results, "figures", name))
        os.rmdir(os.path.join(self.results, "figures"))
        self.change(len(lines) - 1, union_mean="12345")
        self.refuse(self.table, f"line {len(lines) + 1}", "one selection row for deft {}, n = 32, seed 1 with these keys",
                    f"another with other numbers in line {lines.index(last) + 1}")

    def test_summary(self):
        def restore():
            fixture.make(self.results, workers=(2, 4, 32), platforms=("hdr-nvlink",), sparsifiers=("topk", "deft"))

        for change, place, expected, found in (
                (lambda v: v.update(schema_version=2), "/schema_version", "1", "2"),
                (lambda v: v.pop("break_even"), "/break_even", "a list", "nothing"),
                (lambda v: v["break_even"][1].pop("seed"), "/break_even/1/seed", "an integer", "nothing"),
                (lambda v: v["break_even"][0].update(seed=True), "/break_even/0/seed", "an integer", "True"),
                (lambda v: v["break_even"][0].update(points=[{"workers": 0.5}]), "/break_even/0/points/0/workers", "a number of at least 1", "0.5"),
                (lambda v: v["break_even"][0].update(points=[3]), "/break_even/0/points/0", "an object", "3"),
                (lambda v: v["break_even"][0].update(wins_at=["2"]), "/break_even/0/wins_at/0", "an integer of at least 1", "'2'"),
                (lambda v: v["break_even"][0].update(density=10**40), "/break_even/0/density", "a number", str(10**40)),
                (lambda v: v.update(warnings=[1]), "/warnings/0", "a text", "1")):
            with self.subTest(place):
                self.edit_summary(change)
                self.refuse(self.summary, place, expected, found)
                restore()
        with open(self.summary, "w", encoding="utf-8") as file:
            file.write('{"schema_version": 1,\n oops}')
        self.refuse(self.summary, "line 2, column 2", "JSON", "Expecting property name enclosed in double quotes")
        with open(self.summary, "w", encoding="utf-8") as file:
            file.write("[" * 100000)
        status, _, err = plot(self.results)
        self.assertEqual((status, err.count("\n")), (2, 1))

    def test_figure_without_rows(self):
        fixture.make(self.results, workers=(2, 4), platforms=("hdr-nvlink",), groups=("selection", "traffic"))
        self.refuse(self.table, "", "rows of its metric group for the figure speed_up", "none", "--figure", "speed_up")
        status, out, err = plot(self.results, "--format", "png")
        self.assertEqual((status, len(out.split())), (0, 3 * 4))
        skipped = [line.split(" is not drawn: it needs ")[0] for line in err.splitlines()]
        self.assertEqual(skipped, [f"sparscale: {name}" for name in ("breakdown", "speed_up", "efficiency", "overlap", "density_over_iterations", "selection_time",
                                                                      "link_traffic", "energy_time", "winner_map", "claims")])

    def test_usage(self):
        for arguments in ((), (self.results, "--figure", "pie"), (self.results, "--format", "pdf,gif"), (self.results, "--style", "wide"), (self.results, "--what")):
            status, out, err = plot(*arguments)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1), arguments)
            self.assertTrue(err.startswith("sparscale: "), err)

    def test_process(self):
        done = plot_process(self.path("none"))
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (2, "", f"sparscale: {self.path('none')}: expected a result directory, found nothing\n"))

    def test_damaged_tables_never_end_in_a_traceback(self):
        from analysis import results

        with open(self.table, "rb") as file:
            good = file.read()
        chance, refused, accepted = random.Random(20240501), 0, 0
        for _ in range(300):
            data = bytearray(good)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(data))
                kind = chance.randrange(3)
                if kind == 0:
                    data[at] = chance.randrange(256)
                elif kind == 1:
                    del data[at:at + chance.randrange(1, 40)]
                else:
                    data[at:at] = chance.choice([b",", b"\n", b'"', b"nan", b"1e999", b"\x00", b"-", b"{}"])
            with open(self.table, "wb") as file:
                file.write(data)
            try:
                results.load(self.results)
                accepted += 1
            except results.InputError as error:
                refused += 1
                self.assertNotIn("\n", str(error))
                self.assertIn(": expected ", str(error))
        self.assertGreater(refused, 150)
        self.assertGreater(accepted, 5)


class Sweeps(DirectoryTest):
    def test_rows_of_swept_fields_are_cut_apart_with_their_own_baselines(self):
        from analysis import compare
        from analysis import results as result_files
        from analysis.figures.speed_up import entries_of

        def times(factor):
            def change(row):
                for column in fixture.TIME[:-1]:
                    row[column] = repr(float(row[column]) * factor) if row[column] else ""
                dense = row["sparsifier"].startswith("dense")
                return {**row, "forward_time_s": repr({1: 0.02, 3: 0.06}[factor]), "error_feedback": "true" if dense or factor == 1 else "false"}
            return change

        options = {"workers": (2, 4), "platforms": ("hdr-nvlink",), "sparsifiers": ("topk",), "groups": ("selection", "time"), "more": ("forward_time_s", "error_feedback")}
        first, second = (fixture.make(self.path(name), change=times(factor), **options) for name, factor in (("a", 1), ("b", 3)))
        with open(os.path.join(second, "results.csv"), encoding="utf-8") as file:
            more = file.read().split("\n", 1)[1]
        with open(os.path.join(first, "results.csv"), "a", encoding="utf-8") as file:
            file.write(more)
        path = os.path.join(first, "summary.json")
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
        summary["break_even"] = [{**entry, "error_feedback": feedback} for entry in summary["break_even"] for feedback in (True, False)]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(summary, file)

        loaded = result_files.load(first)
        found = result_files.slices(loaded, "time", ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast"))
        self.assertEqual(result_files.varying(found), ["error_feedback"])
        self.assertEqual([one.facets["error_feedback"] for one in found], ["true", "false"])
        for one, forward in zip(found, (0.02, 0.06)):
            self.assertEqual({float(row.forward_time_s) for row in one.rows()}, {forward})
            self.assertEqual({series for series, _ in one.curves}, {"dense", "dense_fp16", "topk"})
            self.assertEqual([entry.more["error_feedback"] for entry in entries_of(loaded, one)], [one.facets["error_feedback"] == "true"] * 2)
        # The numbers of what is selected do not differ, so they are one slice.
        self.assertEqual(len(result_files.slices(loaded, "selection", ("trace", "density"))), 1)
        self.assertEqual(compare.compare(first, first, 0)["metrics"], [])


if __name__ == "__main__":
    unittest.main()
