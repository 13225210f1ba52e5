"""Platforms of a result directory that differ in the bandwidth of their NICs only, so that the bandwidth is an axis."""
import json
import os

from analysis import results as result_files


def documents(directory):
    """The platforms of a result directory by name. Errors: InputError when they were not written down."""
    path = os.path.join(directory, "environment.json")
    found = result_files.read_object(path).get("platforms")
    if not isinstance(found, dict) or not found:
        raise result_files.InputError(path, "/platforms", "the platforms of the runs (results of an earlier version: run the experiment again)", "none")
    for name, document in found.items():
        try:
            known = document["node"]["nics"]["bandwidth_GBps"] > 0
        except (KeyError, TypeError):
            known = False
        if not known:
            raise result_files.InputError(path, f"/platforms/{name}/node/nics/bandwidth_GBps", "a number above 0", "none")
    return found


def _without_nic_bandwidth(platform):
    """What must be the same of two of them: all but the bandwidth of the NICs and the texts."""
    def bare(value):
        if isinstance(value, dict):
            return {k: bare(v) for k, v in value.items() if k not in ("provenance", "description", "device_name") and not (k == "name" and isinstance(v, str))}
        return [bare(item) for item in value] if isinstance(value, list) else value

    document = bare(platform)
    document["node"]["nics"].pop("bandwidth_GBps")
    return document


def by_bandwidth(results, found):
    """Slices that differ in the bandwidth of their platforms' NICs only: list of {GB/s: slice}, each with several, by ascending bandwidth. Errors: InputError."""
    known, families = documents(results.directory), {}
    for one in found:
        # Behind a platform's name stands, in brackets, what is not its own (a placement, a timeline).
        base, _, more = one.facets["platform"].partition(" ")
        if base not in known:
            continue
        key = (json.dumps(_without_nic_bandwidth(known[base]), sort_keys=True), more, tuple((k, v) for k, v in one.facets.items() if k != "platform"))
        families.setdefault(key, {}).setdefault(known[base]["node"]["nics"]["bandwidth_GBps"], one)
    return [dict(sorted(family.items())) for family in families.values() if len(family) > 1]


def by_bandwidth_or_none(results, found):
    """The same; none where the platforms were not written down (results that were passed on alone, or of an earlier version)."""
    if len({one.facets["platform"] for one in found}) < 2 or not os.path.exists(os.path.join(results.directory, "environment.json")):
        return []
    if "platforms" not in result_files.read_object(os.path.join(results.directory, "environment.json")):
        return []
    return by_bandwidth(results, found)
