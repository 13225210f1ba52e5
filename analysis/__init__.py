"""Figures from a result directory (docs/results.md). Reads result files only; needs Python 3.9, numpy and matplotlib 3.6 or newer."""
