# SPDX-License-Identifier: MIT
"""Measures heed and its peers on the same inputs, in turns on the same cores: run.sh installs what this needs.

For each workload heed writes its inputs and output; a variant of a peer is measured only when its output agrees. Rounds
then run a slice of heed and a slice of a peer back to back. The ratio is the median over the rounds of (peer's time /
heed's time); a round in which either process had less than 95 % of its cores doesn't count.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import publish

HERE = Path(__file__).parent
UNDISTURBED = 0.95
WORKLOADS = (
    "F0 F1 F2 F3 F4 F5 F6 F7 F8 D1 D1-half D1-bfloat16 D2 B1 B2 M1 M2 E1a E1b Linear-16x768x3072 Linear-1x576x49152 "
    "R1 R2 T1 MiniLM-1x16 MiniLM-1x128 MiniLM-32x128 MiniLM-mixed"
).split() + [
    f"SmolLM2-{weights}-{step}"
    for weights in ("q", "bf16", "f32")
    for step in "prefill-16 prefill-128 prefill-512 decode-16 decode-512 decode-2048".split()
]


class Server:
    """A process that answers each line with a line of JSON."""

    def __init__(self, command, log, cores=None):
        pin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=pin
        )
        self.command = command

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"compare: {' '.join(self.command)} ended unexpectedly; its messages are in the log")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Contender:
    """Something that runs slices of one workload: a server and the name it knows it by."""

    def __init__(self, title, server, name, slice_ms):
        self.title, self.server, self.name = title, server, name
        self.run(1)
        self.fastest = min(self.run(1)["ms"] for _ in range(3))
        self.calls = max(1, math.ceil(slice_ms / self.fastest))

    def run(self, calls):
        return self.server.ask(f"{self.name} {calls}")

    def slice(self):
        return self.run(self.calls)

    def screen(self):
        """Sees which contender is worth all the rounds."""
        self.fastest = min(self.slice()["ms"] for _ in range(3))


def run_rounds(heed, peer, rounds):
    """Pairs (heed's slice, peer's slice): until `rounds` count, or three times as many ran."""
    pairs, counted = [], 0
    while counted < rounds and len(pairs) < 3 * rounds:
        heed_first = len(pairs) % 2 == 0
        if heed_first:
            ours, theirs = heed.slice(), peer.slice()
        else:
            theirs, ours = peer.slice(), heed.slice()
        counts = min(ours["cpu_share"], theirs["cpu_share"]) >= UNDISTURBED
        counted += counts
        pairs.append((ours, theirs, counts))
    return pairs


def summary(pairs):
    counted = [pair for pair in pairs if pair[2]]
    used = counted or pairs
    ratios = [theirs["ms"] / ours["ms"] for ours, theirs, _ in used]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
    return {
        "ratio": statistics.median(ratios),
        "quartiles": [quartiles[0], quartiles[2]],
        "heed_ms": statistics.median(ours["ms"] for ours, _, _ in used),
        "peer_ms": statistics.median(theirs["ms"] for _, theirs, _ in used),
        "cpu_share": statistics.median(min(ours["cpu_share"], theirs["cpu_share"]) for ours, theirs, _ in used),
        "rounds": len(pairs),
        "counted": len(counted),
    }


def compare(workload, path, heed_server, peers, options):
    """Results of the variants that were measured in full, the fastest first; prints why others were not."""
    variants = []
    for title, server in peers.items():
        answer = server.ask(f"load {path}")
        variants += [(f"{title} {name}", server, name) for name in answer["errors"]]
        for name, reason in answer["failed"].items():
            print(f"  {workload}: {title} {name} is left out: {reason}", file=sys.stderr)
    if not variants:
        print(f"  {workload}: no peer computes it", file=sys.stderr)
        return []

    heed = Contender("heed", heed_server, workload, options.slice)
    contenders = [Contender(*variant, options.slice) for variant in variants]
    for contender in contenders:
        contender.screen()
    contenders.sort(key=lambda c: c.fastest)
    close = [c for c in contenders if c.fastest <= 1.1 * contenders[0].fastest][:3]
    results = []
    for contender in close:
        measured = summary(run_rounds(heed, contender, options.rounds))
        results.append({"workload": workload, "peer": contender.title, "threads": options.threads, **measured})
    for contender in contenders:
        if contender not in close:
            slower = {"workload": workload, "peer": contender.title, "threads": options.threads}
            results.append({**slower, "peer_ms": contender.fastest, "rounds": 0})
    results.sort(key=lambda r: r.get("ratio", math.inf))
    results[0]["fastest"] = True
    return results


HEADER = f"{'workload':<20} {'heed ms':>10} {'peer ms':>10} {'ratio':>6} {'quartiles':>13} {'counted':>8}  fastest peer"


def row(result):
    low, high = result["quartiles"]
    disturbed = "" if result["counted"] else " (no round was undisturbed: a guess from all)"
    return (
        f"{result['workload']:<20} {result['heed_ms']:>10.4f} {result['peer_ms']:>10.4f} {result['ratio']:>6.2f} "
        f"{f'{low:.2f} to {high:.2f}':>13} {result['counted']:>5}/{result['rounds']:<2}  {result['peer']}{disturbed}"
    )


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; by default all that peers compute")
    parser.add_argument("--heed", required=True, help="the program workloads")
    parser.add_argument("--threads", type=int, default=1, help="of each contender, one a core (default 1)")
    parser.add_argument("--rounds", type=int, default=30, help="that have to count (default 30)")
    parser.add_argument("--slice", type=float, help="milliseconds, at least (default 20, with several threads 50)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/compare"), help="for results.jsonl, ratios.svg and the log"
    )
    options = parser.parse_args()
    # The processor time of other threads is known to a tick of the scheduler only.
    options.slice = options.slice or (20 if options.threads == 1 else 50)
    if unknown := set(options.names) - set(WORKLOADS):
        parser.error(f"no such workload: {' '.join(sorted(unknown))}; there are {' '.join(WORKLOADS)}")
    return options


def main():
    options = parse()
    names = options.names or WORKLOADS
    available = sorted(os.sched_getaffinity(0))
    if len(available) < options.threads:
        raise SystemExit(f"compare: {options.threads} threads but {len(available)} cores")
    cores = available[: options.threads]
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "log.txt", "w") as log, tempfile.TemporaryDirectory() as directory:
        heed_server = Server([options.heed, "--serve", "--threads", str(options.threads)], log, set(cores))
        peers = {}
        scripts = {"PyTorch": "torch_peer.py", "ONNX Runtime": "onnxruntime_peer.py"}
        if importlib.util.find_spec("llama_cpp"):
            scripts["llama.cpp"] = "llamacpp_peer.py"
        for title, script in scripts.items():
            command = [sys.executable, str(HERE / script), str(options.threads), ",".join(map(str, cores))]
            peers[title] = Server(command, log)
        isa = json.loads(subprocess.check_output([options.heed, "F6", "--json", "--seconds", "0.01"]))["isa"]
        about = "; ".join([f"heed, {isa}"] + [server.read()["about"] for server in peers.values()])
        about += f"; {options.threads} thread{'s' if options.threads > 1 else ''}"
        print(about, HEADER, sep="\n", flush=True)

        fastest = []
        with open(options.out / "results.jsonl", "w") as lines:
            for name in names:
                path = Path(directory) / f"{name}.safetensors"
                subprocess.run([options.heed, "--save", directory, name], check=True)
                if not path.exists():
                    continue  # heed has told why
                results = compare(name, path, heed_server, peers, options)
                path.unlink()
                for result in results:
                    lines.write(json.dumps({**result, "heed_isa": isa}) + "\n")
                lines.flush()
                if results:
                    print(row(results[0]), flush=True)
                    fastest.append(results[0])
        for server in (heed_server, *peers.values()):
            server.close()
    if fastest:
        bars = [(result["workload"], result["ratio"], result["peer"]) for result in fastest]
        (options.out / "ratios.svg").write_text(publish.svg(bars, about), encoding="utf-8")
        print(f"all contenders: {options.out}/results.jsonl, drawn: {options.out}/ratios.svg")


if __name__ == "__main__":
    main()
