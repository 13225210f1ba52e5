#!/usr/bin/env python3
"""Brings the tables of docs/experiments/*.md up to date: scripts/update-experiment-pages.py DIR..., result directories of ready-made experiments.
With --check it changes nothing and exits with 1 when a table is not what the results say."""
import csv
import json
import os
import sys

PAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "experiments")
BEGIN, END = "<!-- claims: written by scripts/update-experiment-pages.py -->\n", "<!-- end of claims -->\n"


def number(text):
    return f"{float(text):.3g}" if text else "-"


def table(directory):
    with open(os.path.join(directory, "tables", "claims.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["| claim | source | claimed | here | outcome |", "|---|---|---|---|---|"]
    for row in rows:
        outcome = row["outcome"] + (": " + row["differs_because"] if row["outcome"] == "differs" and row["differs_because"] else "")
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in (row["claim"], row["source"], row["expected"], number(row["value"]), outcome)) + " |")
    return "\n".join(lines) + "\n"


def main(arguments):
    check = "--check" in arguments
    stale = []
    for directory in [one for one in arguments if one != "--check"]:
        with open(os.path.join(directory, "experiment.json"), encoding="utf-8") as file:
            name = json.load(file)["name"]
        path = os.path.join(PAGES, name + ".md")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
        new = text[:start] + table(directory) + text[end:]
        if new != text:
            stale.append(name)
            if not check:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(new)
    print("\n".join(f"{name}: {'not what the results say' if check else 'updated'}" for name in stale) or "all up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
