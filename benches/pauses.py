#!/usr/bin/env python3
"""How long others wait while clients do their worst: the longest wait of another client's PING, and the memory.

    ordain serve --ephemeral --listen 127.0.0.1:7000 &
    ordain serve --ephemeral --listen 127.0.0.1:7001 --admin 127.0.0.1:7002 &
    benches/pauses.py --port 7000 [--control 7001] [--json FILE] [NAME ...]

Each load is run for itself, on a database that is flushed before it. Processes of their own send PING on four connections,
on each a millisecond after the one before is answered; the node's resident memory is read from /proc if the node is on this
machine. A control is an idle node on the same machine: its waits at the same time are those of the machine.
"""

import argparse
import json
import multiprocessing
import resource
import socket
import sys
import time

MB16 = 16_000_000


def command(*words):
    out = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        out += [b"$%d\r\n" % len(word), word, b"\r\n"]
    return b"".join(out)


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, data):
        """Sends as much as is taken within a second."""
        self.socket.settimeout(1)
        try:
            self.socket.sendall(data)
        except OSError:
            pass
        self.socket.settimeout(None)

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind in b"*%" and kind:
            return [self.reply() for _ in range(int(rest) * (2 if kind == b"%" else 1))]
        if not line:
            raise ConnectionError("closed")
        return line[:-2]

    def run(self, *words):
        self.socket.sendall(command(*words))
        return self.reply()


def deaf(port, count, data):
    clients = [Client(port) for _ in range(count)]
    for client in clients:
        client.send(data)
    time.sleep(3)
    return clients


def readers(port):
    Client(port).run("SETRANGE", "large", MB16 - 1, "x")
    return deaf(port, 30, command("GET", "large") * 100)


def blocks(port):
    Client(port).run("SETRANGE", "large", MB16 - 1, "x")
    return deaf(port, 20, command("MULTI") + command("GET", "large") * 15 + command("EXEC"))


def hashes(port):
    client = Client(port)
    for start in range(0, 200_000, 1000):
        client.run("HSET", "h", *(word for n in range(start, start + 1000) for word in (f"field{n}", "value")))
    return deaf(port, 2, command("MULTI") + command("HGETALL", "h") * 100 + command("EXEC"))


def often(port):
    client = Client(port)
    client.run("SETRANGE", "large", MB16 - 1, "x")
    client.run("HSET", "h", "f", client.run("GET", "large"))
    client.run("HMGET", "h", *["f"] * 100_000)
    client.run("HRANDFIELD", "h", "-1000000", "WITHVALUES")
    return []


def patterns(port):
    client = Client(port)
    for n in range(20):
        client.run("SET", f"{n:03}" + "a" * 65_000, "v")
    pattern = "*" + "a*" * 32_000 + "b"
    client.run("KEYS", pattern)
    client.run("SCAN", "0", "MATCH", pattern, "COUNT", "1000000")
    return []


def halves(port):
    half = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16000000\r\n" + b"x" * 15_000_000
    return deaf(port, 80, half)


def fill(port):
    client = Client(port)
    if client.run("CONFIG", "GET", "maxmemory")[1] == b"0":
        sys.exit("fill writes 32 GB: start the node with --maxmemory")
    client.send(b"".join(command("SETRANGE", f"k{n}", MB16, "x") for n in range(2000)))
    answers = [client.reply() for _ in range(2000)]
    print(f"  {sum(a.startswith(b'-OOM') for a in answers)} of 2000 refused (OOM)")
    return []


def idle(port):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000, hard - 100)
    Client(port).run("CONFIG", "SET", "maxclients", 20_000)
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"PING\r\n")
        client.recv(16)
        clients.append(client)
    time.sleep(3)
    return clients


LOADS = {f.__name__: f for f in (readers, blocks, hashes, often, patterns, halves, idle)}


def resident(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))
    except (OSError, StopIteration):
        return 0


def ask(port, pid, stop, pipe):
    """Sends PING until told to stop; sends the waits and the peak of memory, of a process that is given."""
    other, waits, peak, looked = Client(port), [], 0, 0
    pipe.send(None)
    while not stop.is_set():
        begin = time.monotonic()
        other.run("PING")
        end = time.monotonic()
        waits.append(end - begin)
        if pid and end - looked > 0.05:
            peak, looked = max(peak, resident(pid)), end
        time.sleep(0.001)
    pipe.send((waits, peak))


class Asking:
    """Processes that send PING to a node, on so many connections: they are spread over the loops of the node."""

    def __init__(self, port, pid=None, count=4):
        self.stop, self.processes, self.pipes = multiprocessing.Event(), [], []
        for _ in range(count):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=ask, args=(port, pid, self.stop, theirs), daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(ours)
        for pipe in self.pipes:
            pipe.recv()

    def end(self):
        self.stop.set()
        found = [pipe.recv() for pipe in self.pipes]
        for process in self.processes:
            process.join()
        return sorted(wait for waits, _ in found for wait in waits), max(peak for _, peak in found)


def measure(port, control_port, load):
    control = Client(port)
    control.run("FLUSHALL")
    info = control.run("INFO", "server").decode()
    pid = next(line.split(":")[1] for line in info.split("\r\n") if line.startswith("process_id:"))
    before = resident(pid)
    asking = Asking(port, pid)
    beside = Asking(control_port) if control_port else None
    held = load(port)
    each = (resident(pid) - before) / max(1, len(held))
    waits, peak = asking.end()
    idle = beside.end()[0] if beside else [0]
    del held
    return {
        "pings": len(waits),
        "ping_longest_ms": waits[-1] * 1e3,
        "ping_p99_ms": waits[len(waits) * 99 // 100] * 1e3,
        "control_longest_ms": idle[-1] * 1e3,
        "grown_bytes": max(0, peak - before),
        "bytes_a_connection": each,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--control", type=int, help="port of an idle node on the same machine")
    parser.add_argument("--json")
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join([*LOADS, "fill"]))
    args = parser.parse_args()
    loads = LOADS | {"fill": fill}
    results = {}
    for name in args.names or LOADS:
        if name not in loads:
            sys.exit(f"no load is called {name}: there are {' '.join(loads)}")
        result = results[name] = measure(args.port, args.control, loads[name])
        print(
            f"{name:10} longest PING {result['ping_longest_ms']:8.1f} ms, p99 {result['ping_p99_ms']:7.1f} ms, "
            f"of {result['pings']:6}, control {result['control_longest_ms']:6.1f} ms, "
            f"grown {result['grown_bytes'] >> 20:6} MiB, {result['bytes_a_connection']:.0f} bytes a connection"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
