"""What several figures choose in the same way: the n that stand for all, runs over their iterations, slices that say the same."""
import math


def telling_workers(one):
    """The largest n with captured counts and the largest n of a slice: what is known best, and how far it was carried."""
    rows = one.rows(dense=False)
    captured = [row.workers for row in rows if row.status == "captured"]
    return sorted({max(row.workers for row in rows)} | ({max(captured)} if captured else set()))


def point_at(one, series, workers):
    return next((p for p in one.curves.get(series, ()) if p.workers == workers), None)


def over_iterations(results, point, name):
    """Points of a series over the iterations, which are counted from the first of the replay (warm-up included): mean over the seeds,
    a band from the lowest to the highest seed."""
    runs = [results.series(row, name) for row in point.rows]
    points = []
    for index in range(point.iterations):
        values = [run[index] for run in runs]
        known = not any(map(math.isnan, values))
        points.append({"x": point.warmup_iterations + index, "y": sum(values) / len(values) if known else math.nan,
                       "low": min(values) if known and len(values) > 1 else None, "high": max(values) if known and len(values) > 1 else None,
                       "status": point.status,
                       "cells": {"workers": point.workers, "counts_origin": point.counts_origin, "validated": point.validated,
                                 "iterations": point.iterations, "seeds": len(point.rows)}})
    return points


def alike(found, columns, ignoring):
    """Slices that differ in the facets `ignoring` only and in none of the columns' means: list of (one of them, all of them).

    Times are differences of clocks, so that the same times may differ by the rounding of an iteration's time."""
    kept = []
    for one in found:
        for first, same in kept:
            if all(first.facets.get(k) == one.facets.get(k) for k in {*first.facets, *one.facets} if k not in ignoring) and _same(first, one, columns):
                same.append(one)
                break
        else:
            kept.append((one, [one]))
    return kept


def _same(a, b, columns):
    if a.curves.keys() != b.curves.keys():
        return False
    for series, points in a.curves.items():
        others = b.curves[series]
        if [p.workers for p in points] != [p.workers for p in others]:
            return False
        for p, q in zip(points, others):
            scale = max(abs(p.rows[0].values.get("iteration_time_s_mean", 0.0)), abs(q.rows[0].values.get("iteration_time_s_mean", 0.0)))
            for column in columns:
                x, y = p.mean(column), q.mean(column)
                if not (abs(x - y) <= 1e-12 * scale + 1e-12 * abs(x) or (math.isnan(x) and math.isnan(y))):
                    return False
    return True
