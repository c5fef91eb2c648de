#!/usr/bin/env python3
"""Compares engines by workload, on one node and on three: the figures of decision 53.

    cargo build --release
    python3 benches/engines.py --out engines.json

Each line of the table is one invocation of `ordain bench`, which runs the engines in turns. Throughput is of a closed
loop; latency is at a rate that all of them keep up with. A run whose checks fail, or which others disturbed, is left out
and counted. `--table FILE` prints the tables of an earlier run.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKLOADS = {
    "YCSB, half writes": ["ycsb", "--ops-per-txn", "10", "--write-ratio", "0.5"],
    "YCSB, half writes, skewed": ["ycsb", "--ops-per-txn", "10", "--write-ratio", "0.5", "--theta", "0.9"],
    "YCSB, 95% only read, skewed": ["ycsb", "--ops-per-txn", "10", "--write-ratio", "0.5", "--theta", "0.9",
                                    "--read-only", "0.95", "--read-only-ops", "10"],
    "TPC-C": ["tpcc", "--warehouses", "3"],
    "microbenchmark": ["micro"],
    "bank, transfers may abort": ["bank", "--accounts", "100000"],
    "one operation, Redis clients": ["ycsb", "--via", "resp", "--ops-per-txn", "1", "--write-ratio", "0.5"],
}

# What a workload does on several partitions: a tenth of the transactions cross them.
CROSSING = {"ycsb": ["--multi-partition", "0.1", "--partitions-per-txn", "2"], "micro": ["--multi-partition", "0.1"]}

# Arguments, and requests a second when latency is measured.
SHAPES = {
    "one node": (["--threads", "1"], 2000),
    "one node, two threads": (["--threads", "2"], 2000),
    "three partitions": (["--threads", "1", "--nodes", "3"], 1000),
    "three replicas": (["--threads", "1", "--nodes", "1", "--replicas", "3", "--replication", "sync"], 1000),
}

LOADS = ["throughput", "latency"]


def run(ordain, arguments):
    """Runs `ordain bench` and returns its runs."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.json"
        done = subprocess.run(
            [ordain, "bench", *arguments, "--data-dir", directory, "--json", out], capture_output=True, text=True)
        if not out.exists():
            sys.exit(f"ordain bench {' '.join(arguments)}: {done.stderr.strip()}")
        return json.loads(out.read_text())["runs"]


def measure(options):
    """Measures every setting and returns the results with their commands."""
    results = []
    for shape, (shape_arguments, rate) in SHAPES.items():
        for workload, workload_arguments in WORKLOADS.items():
            # A cluster's clients are embedded.
            is_left_out = "--nodes" in shape_arguments and "resp" in workload_arguments
            if is_left_out or options.only and not any(name in workload for name in options.only):
                continue
            for load in LOADS:
                crossing = CROSSING.get(workload_arguments[0], []) if shape == "three partitions" else []
                arguments = [*workload_arguments, *crossing, *shape_arguments, "--engine", options.engines,
                             "--durability", "fsync", "--repeat", str(options.repeat), "--duration", str(options.duration),
                             "--warmup", "0.5", "--no-ceiling"]
                if load == "latency":
                    arguments += ["--rate", str(rate)]
                runs = run(options.ordain, arguments)
                results.append({"shape": shape, "workload": workload, "load": load, "command": arguments, "runs": runs})
                print(f"{shape}, {workload}, {load}: {len(runs)} runs", file=sys.stderr, flush=True)
                options.out.write_text(json.dumps(results))
    return results


def sound(run):
    """Tells whether a run's work was checked, on a machine that nobody else used."""
    return run["disturbance"]["state"] == "free" and all(check == "pass" for check in run["checks"].values())


def figures(result, engine):
    """The sound runs of an engine: throughput, processor time of a transaction, p50 and p99; none without a sound run."""
    runs = [run for run in result["runs"] if run["engine"] == engine and sound(run)]
    if not runs:
        return None
    median = lambda figure: statistics.median(figure(run) for run in runs)
    client = "driver: generate"
    return {
        "throughput": median(lambda run: run["txn_per_s"]),
        "cpu": median(lambda run: sum(us for part, us in run["cpu_us_per_txn"].items() if part != client)),
        "p50": median(lambda run: run["latency_us"]["p50"]) / 1000,
        "p99": median(lambda run: run["latency_us"]["p99"]) / 1000,
    }


def table(results):
    """Prints a table for each load: the first engine's figures, and those of the others over them."""
    engines = list(dict.fromkeys(run["engine"] for result in results for run in result["runs"]))
    first, others = engines[0], engines[1:]
    for load, columns in [("throughput", ["throughput", "cpu"]), ("latency", ["p50", "p99"])]:
        units = {"throughput": "txn/s", "cpu": "CPU us a txn", "p50": "p50 ms", "p99": "p99 ms"}
        heads = [f"{first}, {units[column]}" for column in columns]
        heads += [f"{other} over it, {units[column]}" for other in others for column in columns]
        print("|".join(["", *[f" {head} " for head in ["shape", "workload", *heads]], ""]))
        print("|".join(["", *["---"] * (2 + len(heads)), ""]))
        for result in (result for result in results if result["load"] == load):
            base = figures(result, first)
            cells = [result["shape"], result["workload"]]
            cells += [f"{base[column]:,.0f}" if column == "throughput" else f"{base[column]:.2f}" if base else "-" for column in columns]
            for other in others:
                their = figures(result, other)
                cells += [f"{their[column] / base[column]:.2f}" if base and their else "-" for column in columns]
            print("| " + " | ".join(cells) + " |")
        print()
    left_out = sum(not sound(run) for result in results for run in result["runs"])
    print(f"{left_out} of {sum(len(result['runs']) for result in results)} runs are left out: disturbed, or a check failed.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ordain", default="target/release/ordain", help="the program")
    parser.add_argument("--engines", default="calvin,paxflow,qstore", help="what to compare; the first is what others are held to")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each engine in each setting")
    parser.add_argument("--duration", type=float, default=2, help="seconds of each run")
    parser.add_argument("--only", action="append", metavar="WORD", help="workloads whose names have this word; all by default")
    parser.add_argument("--out", type=Path, default=Path("engines.json"), help="where the results go")
    parser.add_argument("--table", type=Path, help="print the tables of these results")
    options = parser.parse_args()
    table(json.loads(options.table.read_text()) if options.table else measure(options))


if __name__ == "__main__":
    main()
