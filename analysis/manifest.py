"""What earlier calls wrote, so that figures and tables which no longer belong to the results do not stay beside those that do.

RESULT_DIR/figures/manifest.json: for every figure (and "tables") the files of its last drawing, with a digest of what was drawn and how.
"""
import hashlib
import json
import os

NAME = "manifest.json"


def digest(style, *data):
    """A digest of a drawing: the style, and the bytes of its CSV and caption."""
    sums = hashlib.sha256(style.encode())
    for one in data:
        sums.update(hashlib.sha256(one).digest())
    return sums.hexdigest()


def load(directory):
    """{figure: {path relative to RESULT_DIR: digest}}; empty when there is no manifest, or none that can be read (a lost manifest removes nothing)."""
    try:
        with open(os.path.join(directory, "figures", NAME), encoding="utf-8") as file:
            entries = json.load(file)["files"]
        return {figure: {path: str(sums) for path, sums in files.items() if _inside(path)} for figure, files in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _inside(path):
    """A path below figures/ or tables/, as this module writes them: a manifest never names anything else for removal."""
    parts = path.split("/")
    return len(parts) == 2 and parts[0] in ("figures", "tables") and parts[1] not in ("", ".", "..", NAME)


def update(directory, before, drawn, replaced):
    """Removes the files of `before` that `replaced` (names of figures that were drawn, or could not be) no longer have, and returns (manifest as
    bytes, removed paths). drawn: {figure: {path: digest}}. A file in a format that was not asked for this time stays while what it shows is the same."""
    entries = {figure: files for figure, files in before.items() if figure not in replaced}
    removed = []
    for figure in replaced:
        now = drawn.get(figure, {})
        shown = {(_base(path), sums) for path, sums in now.items()}
        kept = {path: sums for path, sums in before.get(figure, {}).items() if path not in now and (_base(path), sums) in shown}
        for path in sorted(set(before.get(figure, {})) - set(now) - set(kept)):
            try:
                os.remove(os.path.join(directory, *path.split("/")))
                removed.append(path)
            except FileNotFoundError:
                pass
        if now or kept:
            entries[figure] = {**kept, **now}
    text = json.dumps({"files": {figure: dict(sorted(files.items())) for figure, files in sorted(entries.items())}}, indent=1) + "\n"
    return text.encode(), removed


def _base(path):
    return os.path.splitext(path)[0]
