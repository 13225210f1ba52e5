"""python3 -m sparscale_capture finish FOLDER: makes traces of what a killed job left."""

import sys

from sparscale_capture.finish import finish


def main(arguments):
    if len(arguments) != 2 or arguments[0] != "finish":
        print("usage: python3 -m sparscale_capture finish FOLDER", file=sys.stderr)
        return 2
    try:
        traces = finish(arguments[1])
    except (OSError, ValueError) as error:
        print(f"sparscale_capture: {error}", file=sys.stderr)
        return 2
    for folder, count in traces:
        print(f"{folder}: {count} iterations")
    if not traces:
        print(f"{arguments[1]}: no unfinished capture with a complete iteration", file=sys.stderr)
        return 1
    return 0


sys.exit(main(sys.argv[1:]))
