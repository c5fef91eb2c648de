"""Drives a real server through redis-cli, redis-py and redis-benchmark, kills it, and looks for its data.

Every check prints one line; the last line is `N passed, M failed`. Waiting is always for an event (a line from the
server, its exit), with a limit, and never for a while.
"""

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from pathlib import Path

import redis

from smoke_cluster import check_cluster

ROOT = Path(__file__).resolve().parent.parent
# Without `--`, this is `ordain serve` with its defaults; the environment moves its ports and its data.
SERVE = ["cargo", "run", "--release"]
READY = re.compile(r"^ready resp=(?P<resp>\S+) admin=(?P<admin>\S+) engine=(?P<engine>\S+) node=(?P<node>\S+)$")
# The build is done by then. Recovery of what the benchmark wrote is not worth more.
READY_WITHIN_S = 60
EXIT_WITHIN_S = 30
TOOL_WITHIN_S = 120

TRANSFER = """
local amount = tonumber(ARGV[1])
local from = tonumber(redis.call('GET', KEYS[1]) or '0')
if from < amount then
    return redis.error_reply('ERR balance is too low')
end
redis.call('DECRBY', KEYS[1], amount)
return redis.call('INCRBY', KEYS[2], amount)
"""


class Server:
    """One run of the server on a data directory."""

    def __init__(self, directory):
        resp, admin = free_ports(2)
        self.stderr = open(directory / "stderr.log", "a+")
        self.process = subprocess.Popen(
            SERVE,
            cwd=ROOT,
            env=os.environ
            | {
                "ORDAIN_DATA_DIR": str(directory / "data"),
                "ORDAIN_LISTEN": f"127.0.0.1:{resp}",
                "ORDAIN_ADMIN": f"127.0.0.1:{admin}",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )
        self.lines = queue.Queue()
        threading.Thread(target=self._read_stdout, daemon=True).start()
        self._wait_until_ready()

    def _read_stdout(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def _wait_until_ready(self):
        deadline = time.monotonic() + READY_WITHIN_S
        try:
            while (line := self.lines.get(timeout=max(0, deadline - time.monotonic()))) is not None:
                if ready := READY.match(line):
                    self.host, _, self.port = ready["resp"].rpartition(":")
                    self.admin, self.engine = ready["admin"], ready["engine"]
                    return
        except queue.Empty:
            pass
        self.kill()
        raise RuntimeError(f"no line `ready resp=ADDR admin=ADDR engine=NAME node=ID` on stdout\n{self.complaints()}")

    def complaints(self):
        self.stderr.seek(0)
        return "".join(self.stderr.readlines()[-20:])

    def kill(self):
        # cargo replaces itself by the program it runs, so this is the server's own process.
        self.process.kill()
        self.process.wait(EXIT_WITHIN_S)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(EXIT_WITHIN_S)

    def cli(self, *words, stdin=None):
        return run("redis-cli", "-h", self.host, "-p", self.port, *words, stdin=stdin)

    def client(self, **options):
        return redis.Redis(self.host, int(self.port), **{"decode_responses": True, "socket_timeout": 30} | options)

    def get(self, path):
        # No proxy of the environment stands between us and our own machine.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://{self.admin}{path}", timeout=10) as response:
            return response.read().decode()


def run(*command, stdin=None):
    """What a tool prints, without the last newline."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_WITHIN_S)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.rstrip("\n")


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def free_block(count):
    """The first of so many free ports in a row."""
    while True:
        first = free_ports(1)[0]
        try:
            with contextlib.ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
        except (OSError, OverflowError):
            continue


class Checks:
    """Runs checks by name and counts them."""

    def __init__(self):
        self.passed = self.failed = 0

    def equal(self, name, check, expected):
        """`check()` returns `expected`."""
        try:
            got = check()
        except Exception as error:  # Whatever it was, the other checks still run.
            self._report(name, f"{type(error).__name__}: {error}")
        else:
            self._report(name, None if got == expected else f"expected {expected!r}, got {got!r}")

    def true(self, name, check):
        self.equal(name, lambda: bool(check()), True)

    def raises(self, name, kind, text, check):
        """`check()` raises an error of this kind with this text in it."""

        def caught():
            try:
                return f"no error, and {check()!r}"
            except kind as error:
                return True if text in str(error) else str(error)

        self.equal(name, caught, True)

    def _report(self, name, problem):
        if problem is None:
            self.passed += 1
            print(f"ok      {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAILED  {name}: {problem}", flush=True)


def check_redis_cli(checks, server):
    checks.equal("redis-cli: PING", lambda: server.cli("PING"), "PONG")
    checks.equal("redis-cli: SET", lambda: server.cli("SET", "smoke:text", "hello"), "OK")
    checks.equal("redis-cli: GET", lambda: server.cli("GET", "smoke:text"), "hello")
    checks.equal("redis-cli: INCR", lambda: server.cli("INCR", "smoke:count"), "1")
    checks.equal(
        "redis-cli: MULTI and EXEC through a pipe",
        lambda: server.cli(stdin="MULTI\nINCR smoke:count\nSET smoke:other there\nEXEC\n").split(),
        ["OK", "QUEUED", "QUEUED", "2", "OK"],
    )
    checks.equal(
        "redis-cli: DISCARD takes no effect",
        lambda: server.cli(stdin="MULTI\nSET smoke:text lost\nDISCARD\nGET smoke:text\n").split(),
        ["OK", "QUEUED", "OK", "hello"],
    )
    script = "return redis.call('GET', KEYS[1]) .. ARGV[1]"
    checks.equal("redis-cli: EVAL", lambda: server.cli("EVAL", script, "1", "smoke:text", "!"), "hello!")
    checks.true(
        "redis-cli: an unknown command gets Redis' error",
        lambda: server.cli("NOSUCH", "a").startswith("ERR unknown command"),
    )


def check_redis_py(checks, server):
    client, other = server.client(), server.client()

    def pipeline():
        with client.pipeline(transaction=True) as pipe:
            pipe.set("smoke:a", 1).incrby("smoke:a", 41).get("smoke:a")
            return pipe.execute()

    checks.equal("redis-py: a pipeline is a transaction", pipeline, [True, 42, "42"])

    def watched(interfere):
        with client.pipeline() as pipe:
            pipe.watch("smoke:watched")
            if interfere:
                other.set("smoke:watched", "theirs")
            pipe.multi()
            pipe.set("smoke:watched", "mine")
            return pipe.execute()

    checks.equal("redis-py: WATCH without a conflict commits", lambda: watched(False), [True])
    checks.raises("redis-py: WATCH with a conflict aborts", redis.WatchError, "", lambda: watched(True))
    checks.equal("redis-py: and the other's write stands", lambda: client.get("smoke:watched"), "theirs")

    fields = {"name": "Ada", "city": "London", "visits": "1"}
    checks.equal("redis-py: HSET", lambda: client.hset("smoke:hash", mapping=fields), 3)
    checks.equal("redis-py: HGETALL", lambda: client.hgetall("smoke:hash"), fields)
    checks.equal("redis-py: HINCRBY", lambda: client.hincrby("smoke:hash", "visits", 4), 5)
    checks.equal("redis-py: HMGET", lambda: client.hmget("smoke:hash", ["city", "none"]), ["London", None])
    checks.equal("redis-py: HDEL", lambda: client.hdel("smoke:hash", "city"), 1)
    checks.raises(
        "redis-py: a wrong type gets Redis' error",
        redis.ResponseError,
        "Operation against a key holding the wrong kind of value",
        lambda: client.incr("smoke:hash"),
    )

    client.mset({"smoke:from": 100, "smoke:to": 0})
    transfer = client.register_script(TRANSFER)
    accounts = ["smoke:from", "smoke:to"]
    checks.equal("redis-py: a registered script", lambda: transfer(keys=accounts, args=[30]), 30)
    checks.raises(
        "redis-py: a script's own error",
        redis.ResponseError,
        "balance is too low",
        lambda: transfer(keys=accounts, args=[500]),
    )
    checks.equal("redis-py: and it moved no money", lambda: client.mget(accounts), ["70", "30"])

    text, raw = "grüße, 世界", bytes(range(256))
    binary = server.client(decode_responses=False)
    client.set("smoke:utf8", text)
    checks.equal("redis-py: text is decoded", lambda: client.get("smoke:utf8"), text)
    binary.set("smoke:raw", raw)
    checks.equal("redis-py: bytes are kept", lambda: binary.get("smoke:raw"), raw)
    for protocol in (2, 3):
        checks.equal(
            f"redis-py: RESP{protocol}",
            lambda: server.client(protocol=protocol).hgetall("smoke:hash"),
            {"name": "Ada", "visits": "5"},
        )


def check_benchmark(checks, server):
    def benchmark():
        command = ["redis-benchmark", "-h", server.host, "-p", server.port]
        printed = run(*command, "-n", "20000", "-q", "-t", "set,get", "-P", "16")
        summary = [line.strip() for line in re.split(r"[\r\n]", printed) if "requests per second" in line]
        for line in summary:
            print(f"        {line}")
        return [line.split(":")[0] for line in summary]

    checks.equal("redis-benchmark: SET and GET, 16 deep", benchmark, ["SET", "GET"])


def check_admin(checks, server):
    checks.true("admin: /healthz", lambda: server.get("/healthz") is not None)
    checks.true("admin: /readyz", lambda: server.get("/readyz") is not None)
    checks.equal("admin: /status", lambda: json.loads(server.get("/status"))["engine"], server.engine)
    checks.true("admin: /metrics", lambda: re.search(r"^ordain_\w+", server.get("/metrics"), re.MULTILINE))


def survivors(server):
    """What the checks above left behind."""
    client, binary = server.client(), server.client(decode_responses=False)
    names = ["text", "count", "other", "a", "watched", "from", "to", "utf8"]
    return {
        "strings": client.mget([f"smoke:{name}" for name in names]),
        "hash": client.hgetall("smoke:hash"),
        "raw": binary.get("smoke:raw"),
        "keys": client.dbsize(),
        "digest": client.execute_command("DEBUG", "DIGEST"),
    }


def has_checkpoint(server):
    """Waits until /status, which is up to half a second old, shows a complete one."""
    deadline = time.monotonic() + 60
    while (shown := json.loads(server.get("/status"))["checkpoint"])["epoch"] == 0:
        if time.monotonic() > deadline:
            raise TimeoutError(shown)
        time.sleep(0.1)
    return True


def check_all(checks, directory):
    server = Server(directory)
    try:
        print(f"ready   engine {server.engine}", flush=True)
        check_redis_cli(checks, server)
        check_redis_py(checks, server)
        check_benchmark(checks, server)
        check_admin(checks, server)

        before = survivors(server)
        checks.true("DEBUG DIGEST is 40 hex digits", lambda: re.fullmatch("[0-9a-f]{40}", before["digest"]))
        server.kill()
        server = Server(directory)
        for what, expected in before.items():
            checks.equal(f"after kill -9: {what}", lambda: survivors(server)[what], expected)
        checks.equal("after kill -9: it still counts", lambda: server.cli("INCR", "smoke:count"), "3")

        checks.equal("SIGTERM: exit code", server.terminate, 0)
        server = Server(directory)
        checks.equal("after SIGTERM: it still counts", lambda: server.cli("INCR", "smoke:count"), "4")
        checks.equal("BGSAVE", lambda: server.cli("BGSAVE"), "Background saving started")
        checks.true("BGSAVE: the checkpoint becomes complete", lambda: has_checkpoint(server))
        server.kill()
        server = Server(directory)
        checks.true("after kill -9: it began from the checkpoint", lambda: has_checkpoint(server))
        checks.equal("from a checkpoint: it still counts", lambda: server.cli("INCR", "smoke:count"), "5")
        checks.equal("SIGTERM: exit code again", server.terminate, 0)
    finally:
        server.kill()
        if checks.failed:
            print(f"--- the last of the server's stderr\n{server.complaints()}", end="")


def main():
    checks = Checks()
    try:
        with tempfile.TemporaryDirectory(prefix="ordain-smoke-") as directory:
            check_all(checks, Path(directory))
            check_cluster(checks, SERVE, ROOT, Path(directory) / "cluster", free_block(3 * 6))
    except Exception:  # The server could not be started, or a step between the checks failed.
        traceback.print_exc()
        checks.failed += 1
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
