"""Which bandwidth of the NICs a wanted efficiency needs: the stored replays of a result directory are timed again by the program, on copies of their platform whose NICs are
faster or slower, in a scratch directory; the result directory is read only."""
import copy
import json
import math
import os
import subprocess
import sys
import tempfile

from analysis import families
from analysis import results as result_files

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Factors on the platform's own bandwidth: the smallest that is tried, and what stands for a NIC that takes no time.
LOWEST, LIMIT = 1e-3, 1e4
LARGEST_GBps = 1e6  # that a platform may have
# The answer is at most so much above a bandwidth that does not suffice.
PRECISION = 0.01
MOST_TIMINGS = 60
# The program must time the run of the directory as the directory says.
SAME_TIME = 1e-9
# Of a run's identity, what an experiment asks for under the same name.
FIELDS = ("density", "workers", "captured_workers", "seed", "warmup_iterations", "iterations", "error_feedback", "lr_in_accumulator", "extrapolate_profile", "all_gather", "all_reduce",
          "broadcast", "reduce_scatter", "reduce", "all_to_all", "gossip", "network", "value_encoding", "index_encoding", "placement", "timeline", "disturbance", "memory",
          "device_memory_GB")


class Failure(Exception):
    """Right input, but it could not be timed; str() is the line the user sees."""


def need(efficiency, time):
    """Searches the smallest factor f on the bandwidth with efficiency(time(f)) >= the wanted one. `time(f)` is the iteration's time; `efficiency` a pair (wanted, compute time).
    Returns (verdict, factor, last factor that does not suffice, {factor: efficiency}); verdict: found, smallest (LOWEST suffices), never (LIMIT does not)."""
    wanted, compute = efficiency
    known = {}

    def enough(factor):
        known.setdefault(factor, compute / time(factor))
        return known[factor] >= wanted

    if not enough(LIMIT):
        return "never", None, LIMIT, known
    if enough(LOWEST):
        return "smallest", LOWEST, None, known
    low, high = (LOWEST, 1.0) if enough(1.0) else (1.0, LIMIT)
    while high > low * (1 + PRECISION) and len(known) < MOST_TIMINGS:
        # Exchanges take a + b / bandwidth as long as one link binds them: the straight line through both ends, and halving the logarithm where it does not get on.
        a, b = compute / known[low], compute / known[high]
        share = (compute / wanted - b) / (a - b) if a > b else 0.5
        guess = 1 / (1 / high + min(max(share, 0.0), 1.0) * (1 / low - 1 / high))
        width = math.log(high / low)
        if len(known) % 3 == 0:
            guess = math.sqrt(low * high)
        # A little to the side of the farther end, so that a good guess closes the bracket from both sides.
        guess *= 1 + 0.4 * PRECISION if math.log(high / guess) > 0.5 * width else 1 - 0.4 * PRECISION
        edge = min(0.3 * PRECISION, 0.25 * width)
        guess = min(max(guess, low * math.exp(edge)), high * math.exp(-edge))
        if enough(guess):
            high = guess
        else:
            low = guess
    return "found", high, low, known


def _inputs(directory):
    """What the experiment calls traces and profiles, by kind and the SHA-256 of their contents, and the platforms' documents by name, from environment.json."""
    path = os.path.join(directory, "environment.json")
    environment = result_files.read_object(path)
    named = {}
    for key, value in environment.get("inputs_sha256", {}).items():
        kind, _, name = key.partition(" ")
        named.setdefault(kind, {})[value] = name
    return path, named, families.documents(directory)


def _entries(experiment, field):
    """Everything that an experiment may mean by a field: its values, and those that named axes set."""
    places = [experiment] + [setting for axis in experiment.get("axes", {}).values() for setting in axis.values()]
    return [entry for place in places if field in place for entry in (place[field] if isinstance(place[field], list) else [place[field]])]


def _is_path(entry):
    return isinstance(entry, str) and ("/" in entry or entry.endswith(".json"))


def _entry(path, experiment, field, name, inner):
    """The entry of a field that stands for the input of that name; `inner`: the file in a folder that holds the name."""
    entries = _entries(experiment, field)
    for entry in entries:
        if entry == name:
            return entry
        if _is_path(entry):
            file = os.path.join(os.path.dirname(path), entry, inner) if inner else os.path.join(os.path.dirname(path), entry)
            if os.path.exists(file) and result_files.read_object(file).get("name") == name:
                return entry
    if len(entries) == 1:
        return entries[0]
    raise result_files.InputError(path, f"/{field}", f"an entry for {name}", ", ".join(map(str, entries)) or "none")


def _found(directory, entry):
    """An entry as an experiment elsewhere has to name it: files of a result directory are named relative to it."""
    return os.path.abspath(os.path.join(directory, entry)) if _is_path(entry) else entry


def _time(identity, key):
    """Seconds of a run's forward or backward pass, one for every layer where the experiment says so."""
    layers = identity.get(key.replace("time", "times"), [])
    return layers if len(layers) > 1 else identity[key]


class Timer:
    """Times one run of a result directory on copies of its platform."""

    def __init__(self, program, results, row, scratch):
        self.program, self.scratch, self.timings, self.row = program, scratch, {}, row
        directory = results.directory
        run_file = os.path.join(directory, "runs", row.run_id + ".json")
        run, experiment_file = result_files.read_object(run_file), os.path.join(directory, "experiment.json")
        experiment, identity = result_files.read_object(experiment_file), run.get("identity", {})
        environment_file, named, platforms = _inputs(directory)

        def called(kind):
            name = named.get(kind, {}).get(identity.get(kind + "_sha256"))
            if name is None:
                raise result_files.InputError(environment_file, "/inputs_sha256", f"the {kind} of {row.run_id}", "none")
            return name

        try:
            self.platform = platforms[row.platform.partition(" ")[0]]
            self.bandwidth_GBps = self.platform["node"]["nics"]["bandwidth_GBps"]
            self.compute_s = identity["forward_time_s"] + identity["backward_time_s"]
            self.experiment = {
                "schema_version": 1, "name": "bandwidth", "sparsifier": {"name": identity["sparsifier"], "parameters": identity["parameters"]},
                "trace": _found(directory, _entry(experiment_file, experiment, "trace", called("trace"), "trace.json")),
                "profile": _found(directory, _entry(experiment_file, experiment, "profile", called("profile"), "")),
                "expansion": identity["expansion_requested"],
                "compute": {**{key: _time(identity, key) for key in ("forward_time_s", "backward_time_s")}, "origin": identity["compute_origin"]},
                **{key: identity[key] for key in FIELDS if key in identity}}
        except KeyError as missing:
            raise result_files.InputError(environment_file if missing.args[0] == row.platform.partition(" ")[0] else run_file, "",
                                          f"{missing.args[0]} (results of an earlier version: run the experiment again)", "nothing") from None
        # Links to the stored replays: what the program had to replay again it writes into the scratch directory only.
        replays = os.path.join(directory, "replays")
        os.makedirs(os.path.join(scratch, "results", "replays"), exist_ok=True)
        for name in os.listdir(replays) if os.path.isdir(replays) else ():
            link = os.path.join(scratch, "results", "replays", name)
            if not os.path.lexists(link):
                os.symlink(os.path.abspath(os.path.join(replays, name)), link)
        self.replay = run.get("replay", "")

    def document(self, factor, links):
        """The platform with its NICs `factor` times as fast, and with `links` its other links too."""
        document = copy.deepcopy(self.platform)
        document["name"] = "scaled-" + format(factor, ".17g").replace("+", "").replace("-", "m") + ("-links" if links else "")
        changed = [document["node"]["nics"]]
        if links:
            changed += [place[key] for place, key in ((document["node"], "device_link"), (document["network"], "link"), (document["network"], "global_link")) if key in place]
        for link in changed:
            link["bandwidth_GBps"] = min(link["bandwidth_GBps"] * factor, LARGEST_GBps)
        return document

    def run(self, factor, links=False):
        """The row of the time group at a factor. Errors: Failure."""
        key = (factor, links)
        if key in self.timings:
            return self.timings[key]
        document = self.document(factor, links)
        experiment, platform = (os.path.join(self.scratch, name) for name in ("experiment.json", document["name"] + ".json"))
        for path, value in ((platform, document), (experiment, dict(self.experiment, platform=platform))):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(value, file)
        out = os.path.join(self.scratch, "results")
        command = [self.program, "run", experiment, "--out", out, "--no-figures", "--jobs", "1"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise Failure(f"{self.program}: {error.strerror or error}") from None
        if done.returncode != 0:
            last = [line for line in done.stderr.splitlines() if line.strip()]
            raise Failure(f"timing {self.row.sparsifier} at n = {self.row.workers} failed: {last[-1] if last else f'exit status {done.returncode}'}")
        row = next(row for row in result_files.load(out).rows if row.metric_group == "time")
        self.timings[key] = row
        return row

    def replayed_again(self):
        return not os.path.islink(os.path.join(self.scratch, "results", "replays", self.replay + ".jsonl"))


PHASES = (("exchange", ("index_exchange_time_s", "value_exchange_time_s")), ("selection", ("selection_time_s",)), ("other kernels", ("other_time_s",)))


def bound(timer, limit, unlimited):
    """What keeps the iteration long on NICs that take no time: seconds of every cause, the largest first. `unlimited`: all links as fast as that."""
    found = {name: sum(limit.values[column] for column in columns) for name, columns in PHASES}
    exchange, free = found.pop("exchange"), sum(unlimited.values[column] for column in PHASES[0][1])
    found["latency"] = min(exchange, free)
    found["other links"] = max(exchange - free, 0.0)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def answers(results, rows, wanted, program, place_of):
    """One answer for every row (of the time group). Errors: InputError, Failure."""
    found = []
    for row in rows:
        with tempfile.TemporaryDirectory(prefix="sparscale-bandwidth-") as scratch:
            timer = Timer(program, results, row, scratch)
            own = timer.run(1.0).values["iteration_time_s_mean"]
            stored = row.values["iteration_time_s_mean"]
            if abs(own - stored) > SAME_TIME * stored:
                raise Failure(f"{results.table_file}: the program times {row.sparsifier} at n = {row.workers} at {own:.9g} s, the results say {stored:.9g} s: run the experiment again first")
            if timer.replayed_again():
                print(f"sparscale: the replay of {row.sparsifier} at n = {row.workers} was made by another build of the program and was made again", file=sys.stderr)
            compute = timer.compute_s
            verdict, factor, below, known = need((wanted, compute), lambda f: timer.run(f).values["iteration_time_s_mean"])
            answer = {"place": place_of(row), **{key: getattr(row, key) for key in ("trace", "density", "platform", "profile", "all_gather", "all_reduce", "broadcast", "seed", "sparsifier", "parameters", "workers")},
                      "efficiency": wanted, "verdict": verdict, "platform_bandwidth_GBps": timer.bandwidth_GBps, "nics": timer.platform["node"]["nics"]["count"],
                      "devices": timer.platform["node"]["devices"], "platform_efficiency": compute / stored, "largest_efficiency": known[LIMIT], "counts": row.status}
            if verdict == "found":
                answer.update(bandwidth_GBps=factor * timer.bandwidth_GBps, not_enough_GBps=below * timer.bandwidth_GBps, efficiency_there=known[factor])
            elif verdict == "smallest":
                answer.update(bandwidth_GBps=LOWEST * timer.bandwidth_GBps, efficiency_there=known[LOWEST], crosses_nics=abs(known[LOWEST] - known[LIMIT]) > 1e-12)
            else:
                limit = timer.run(LIMIT)
                answer["bound_s"] = bound(timer, limit, timer.run(LIMIT, links=True))
                answer["compute_s"], answer["shortest_iteration_s"] = compute, limit.values["iteration_time_s_mean"]
            answer["timings"] = len(timer.timings)
            found.append(answer)
    return found


def text(found, name, words):
    lines = []
    for a in found:
        who = f"{a['place']}: {name((a['sparsifier'], a['parameters']))} at n = {a['workers']}"
        nic = f"{a['nics']} NIC{'s' if a['nics'] > 1 else ''} for {a['devices']} device{'s' if a['devices'] > 1 else ''}"
        now = f"the platform's {a['platform_bandwidth_GBps']:.4g} GB/s ({nic}) give {a['platform_efficiency']:.3g}"
        counts = f" ({words[a['counts']]})" if a["sparsifier"] not in result_files.DENSE else ""
        if a["verdict"] == "found":
            lines.append(f"{who} has an efficiency of {a['efficiency']:g} from {a['bandwidth_GBps']:.4g} GB/s a NIC on, {a['bandwidth_GBps'] / a['platform_bandwidth_GBps']:.3g} times the platform's; "
                         f"{now}{counts}.")
        elif a["verdict"] == "smallest":
            lines.append(f"{who} has an efficiency of {a['efficiency']:g} already at {a['bandwidth_GBps']:.4g} GB/s a NIC, the smallest that was tried{'' if a['crosses_nics'] else ', as nothing crosses a NIC'}; {now}{counts}.")
        else:
            causes = ", ".join(f"{cause} {1e3 * seconds:.4g} ms" for cause, seconds in a["bound_s"].items() if seconds > 0)
            first = next(iter(a["bound_s"]))
            lines.append(f"{who} does not get to {a['efficiency']:g} whatever the NICs' bandwidth: the bound is {a['largest_efficiency']:.3g}, set by {first} "
                         f"(beside {1e3 * a['compute_s']:.4g} ms of forward and backward: {causes}); {now}{counts}.")
    return lines
