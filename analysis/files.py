"""Names of figure files and the grouping of slices into files and panels."""
import hashlib
import re

# A file name has at most 255 bytes, and endings, numbers and those of temporary files come behind it.
LONGEST = 180


def name(base, varying, facets):
    """BASE, then -KEY_VALUE for every facet that differs between the files; what is too long for a file's name ends in a checksum of the whole."""
    parts = [base]
    for key in varying:
        value = facets.get(key)
        if value is not None:
            values = value if isinstance(value, (list, tuple)) else [value]
            text = "_".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
            parts.append(f"{key}_{re.sub('[^A-Za-z0-9._+]+', '_', text)}")
    whole = "-".join(parts)
    return whole if len(whole) <= LONGEST else f"{whole[:LONGEST - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def unique(names):
    """The same names, with a number behind those that occur again (different texts can make the same file name)."""
    seen, result = {}, []
    for one in names:
        seen[one] = seen.get(one, 0) + 1
        result.append(one if seen[one] == 1 else f"{one}-{seen[one]}")
    return result


def pages(slices, panel_key, per_page):
    """Slices that differ in `panel_key` only stand together, at most `per_page` on a page: list of (page, whether it has them all)."""
    groups = {}
    for one in slices:
        groups.setdefault(tuple((k, v) for k, v in sorted(one.facets.items()) if k != panel_key), []).append(one)
    return [(group[i:i + per_page], len(group) <= per_page) for group in groups.values() for i in range(0, len(group), per_page)]
