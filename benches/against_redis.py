#!/usr/bin/env python3
"""Ordain beside redis-server: the same client, the same machine, runs interleaved, medians and ratios.

    cargo build --release && python3 benches/against_redis.py [--rounds 3] [--json FILE] [NAME...]

Needs redis-server, redis-cli and redis-benchmark. Both servers listen on loopback, each starts on an empty
directory, and each measurement runs on one and then on the other, round after round. A ratio above 1 is in
Ordain's favour for rates, and against it for memory. Nothing is asserted: speed lives here, not in tests.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ORDAIN = pathlib.Path(os.environ.get("ORDAIN_BINARY", ROOT / "target" / "release" / "ordain"))


class Server:
    """A server process on a directory of its own."""

    def __init__(self, name, directory, setting):
        self.name, self.directory, self.setting = name, directory, setting
        self.process, self.port = None, None

    def start(self):
        """Starts it and returns the seconds until it takes connections."""
        began = time.monotonic()
        if self.name == "ordain":
            keep = {"everysec": ["--durability", "os"], "always": ["--durability", "fsync"], "no": ["--ephemeral"]}
            command = [ORDAIN, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log", "error",
                       "--data-dir", self.directory, *keep[self.setting]]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            line = self.process.stdout.readline()
            self.port = int(re.search(r"resp=\S+:(\d+)", line).group(1))
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            append = ["--appendonly", "no" if self.setting == "no" else "yes"]
            if self.setting != "no":
                append += ["--appendfsync", self.setting]
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                       "--dir", self.directory, "--logfile", "log", *append]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", self.port)) as s:
                        s.sendall(b"PING\r\n")
                        if s.recv(64).startswith(b"+PONG"):
                            break
                except OSError:
                    pass
        return time.monotonic() - began

    def stop(self, kill=False):
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait()

    def resident_bytes(self):
        pages = pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def redis_benchmark(server, arguments):
    """Requests a second and median latency in ms, as redis-benchmark reports them."""
    command = ["redis-benchmark", "-p", str(server.port), "--csv", *arguments]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    fields = rows[-1].replace('"', "").split(",")
    return float(fields[1]), float(fields[4])


def encode(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def pipelined(server, requests, lines_each, count, batch=64):
    """Transactions a second of prepared requests on one connection, `batch` under way; replies are only counted."""
    buffers = [b"".join(requests[i:i + batch]) for i in range(0, len(requests), batch)]
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began, done, ahead = time.monotonic(), 0, 0
        while done < count:
            while ahead < 2:
                s.sendall(buffers[(done // batch + ahead) % len(buffers)])
                ahead += 1
            lines = 0
            while lines < batch * lines_each:
                chunk = s.recv(1 << 18)
                if b"-ERR" in chunk:
                    raise SystemExit(f"{server.name}: {chunk[:200]!r}")
                lines += chunk.count(b"\n")
            # What was read beyond this batch belongs to the next one.
            done += batch
            ahead -= 1
            surplus = lines - batch * lines_each
            while surplus > 0 and surplus < batch * lines_each:
                lines = surplus
                while lines < batch * lines_each:
                    lines += s.recv(1 << 18).count(b"\n")
                done += batch
                ahead -= 1
                surplus = lines - batch * lines_each
        return done / (time.monotonic() - began)


def key(i):
    return b"key:%012d" % (i * 2654435761 % 100_000)


def multi():
    return [encode(b"MULTI") + b"".join(encode(b"INCR", key(10 * i + j)) for j in range(10)) + encode(b"EXEC")
            for i in range(6400)]


SCRIPT = b"for i=1,10 do redis.call('INCR',KEYS[i]) end return 1"


def scripts():
    return [encode(b"EVAL", SCRIPT, b"10", *[key(10 * i + j) for j in range(10)]) for i in range(6400)]


RANDOM_KEYS = ["-r", "1000000", "-d", "100"]

# name: (durability, unit, higher is better, measure)
RATES = {
    "set-p64-everysec": ("everysec", "req/s", lambda s: redis_benchmark(s, ["-t", "set", "-n", "1000000", "-P", "64", "-c", "50"])[0]),
    "get-p64-everysec": ("everysec", "req/s", lambda s: redis_benchmark(s, ["-t", "get", "-n", "1000000", "-P", "64", "-c", "50"])[0]),
    "set-p64-random": ("everysec", "req/s", lambda s: redis_benchmark(s, ["-t", "set", "-n", "1000000", "-P", "64", "-c", "50", *RANDOM_KEYS])[0]),
    "get-p64-random": ("everysec", "req/s", lambda s: redis_benchmark(s, ["-t", "get", "-n", "1000000", "-P", "64", "-c", "50", *RANDOM_KEYS])[0]),
    "set-p1-everysec": ("everysec", "req/s", lambda s: redis_benchmark(s, ["-t", "set", "-n", "100000", "-c", "50"])[0]),
    "get-p1-everysec": ("everysec", "req/s", lambda s: redis_benchmark(s, ["-t", "get", "-n", "100000", "-c", "50"])[0]),
    "set-p1-always": ("always", "req/s", lambda s: redis_benchmark(s, ["-t", "set", "-n", "100000", "-c", "50"])[0]),
    "get-p1-always": ("always", "req/s", lambda s: redis_benchmark(s, ["-t", "get", "-n", "50000", "-c", "50"])[0]),
    "multi-10-everysec": ("everysec", "txn/s", lambda s: pipelined(s, multi(), 22, 60_000)),
    "eval-10-everysec": ("everysec", "txn/s", lambda s: pipelined(s, scripts(), 1, 60_000)),
    "lone-set-ephemeral-p50": ("no", "ms", lambda s: redis_benchmark(s, ["-t", "set", "-n", "20000", "-c", "1"])[1]),
}


def compare(name, rounds):
    setting, unit, measure = RATES[name]
    results = {"redis": [], "ordain": []}
    with tempfile.TemporaryDirectory() as base:
        servers = []
        for server in ("redis", "ordain"):
            directory = os.path.join(base, server)
            os.mkdir(directory)
            servers.append(Server(server, directory, setting))
            servers[-1].start()
        for _ in range(rounds):
            for server in servers:
                results[server.name].append(measure(server))
        for server in servers:
            server.stop()
    return row(name, unit, results)


def row(name, unit, results):
    medians = {server: statistics.median(values) for server, values in results.items()}
    spread = {server: [min(values), max(values)] for server, values in results.items()}
    return {"name": name, "unit": unit, **medians, "ratio": medians["ordain"] / medians["redis"], "spread": spread}


def memory_and_replay(rounds):
    """Memory of 1 M records of 100 bytes, and how fast the log of loading them is replayed after kill -9."""
    records = 1_000_000
    memory, replay = {"redis": [], "ordain": []}, {"redis": [], "ordain": []}
    for _ in range(rounds):
        for name in ("redis", "ordain"):
            with tempfile.TemporaryDirectory() as base:
                server = Server(name, base, "everysec")
                server.start()
                empty = server.resident_bytes()
                value = b"v" * 100
                with socket.create_connection(("127.0.0.1", server.port)) as s:
                    for first in range(0, records, 1000):
                        s.sendall(b"".join(encode(b"SET", b"key:%012d" % i, value) for i in range(first, first + 1000)))
                        lines = 0
                        while lines < 1000:
                            lines += s.recv(1 << 16).count(b"\n")
                memory[name].append((server.resident_bytes() - empty) / records)
                server.stop(kill=True)
                replay[name].append(records / server.start())
                with socket.create_connection(("127.0.0.1", server.port)) as s:
                    s.sendall(b"DBSIZE\r\n")
                    answer = s.recv(64)
                if name == "ordain" and answer.strip() != b":%d" % records:
                    raise SystemExit(f"{name} lost records: {answer!r}")
                server.stop(kill=True)
    return [row("memory-100-byte-record", "bytes", memory), row("replay-single-key", "txn/s", replay)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(RATES)}, memory; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    for tool in ("redis-server", "redis-benchmark"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed: install redis-server and redis-tools")
    if not ORDAIN.exists():
        sys.exit("build it first: cargo build --release")
    names = options.names or [*RATES, "memory"]
    rows = []
    print(f"{'':28} {'redis':>12} {'ordain':>12} {'ratio':>7}")
    for name in names:
        for r in memory_and_replay(options.rounds) if name == "memory" else [compare(name, options.rounds)]:
            rows.append(r)
            print(f"{r['name']:28} {r['redis']:12.6g} {r['ordain']:12.6g} {r['ratio']:7.2f}  {r['unit']}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
