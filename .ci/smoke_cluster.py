"""Drives a real cluster: everything that a client can do, over all partitions, through any node; then a node is killed."""

import json
import signal
import subprocess
import time

import redis

PARTITIONS, REPLICAS = 2, 3
READY_WITHIN_S = 60
SETTLED_WITHIN_S = 60
EXIT_WITHIN_S = 60

SUM = """
local sum = 0
for _, key in ipairs(KEYS) do
    sum = sum + redis.call('INCRBY', key, ARGV[1])
end
return sum
"""
LIBRARY = """#!lua name=smoke
redis.register_function('swap', function(keys, args)
    local a, b = redis.call('GET', keys[1]), redis.call('GET', keys[2])
    redis.call('MSET', keys[1], b, keys[2], a)
    return {a, b}
end)
"""


class Cluster:
    """One run of `ordain cluster up`."""

    def __init__(self, serve, root, directory, ports):
        grid = ["--partitions", str(PARTITIONS), "--replicas", str(REPLICAS)]
        command = [*serve, "--", "cluster", "up", *grid, "--base-port", str(ports), "--data-dir", str(directory)]
        self.process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said = []
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith("ready "):
                break
        else:
            raise RuntimeError(f"the cluster did not become ready: {''.join(self.said)}")
        self.nodes = json.loads((directory / "cluster.json").read_text())["nodes"]

    def client(self, node, **options):
        port = int(self.nodes[node]["resp"].rsplit(":", 1)[1])
        return redis.Redis(port=port, decode_responses=True, socket_timeout=30, **options)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=EXIT_WITHIN_S)
        return self.process.returncode

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=EXIT_WITHIN_S)


def eventually(attempt):
    """What `attempt()` returns once it raises nothing."""
    until = time.monotonic() + SETTLED_WITHIN_S
    while True:
        try:
            return attempt()
        except (redis.RedisError, OSError):
            if time.monotonic() > until:
                raise


def check_commands(checks, cluster):
    a, b, c = (cluster.client(node) for node in (0, 3, 5))
    keys = [f"smoke:{i}" for i in range(40)]
    checks.true("cluster: MSET over all partitions", lambda: a.mset({key: 0 for key in keys}))

    def increments():
        pipeline = b.pipeline(transaction=True)
        for key in keys:
            pipeline.incr(key)
        return pipeline.execute()

    checks.equal("cluster: MULTI through another node", increments, [1] * 40)
    checks.equal("cluster: MGET through a third", lambda: c.mget(keys), ["1"] * 40)

    def watched(interfere):
        pipeline = a.pipeline()
        pipeline.watch(*keys[:3])
        if interfere:
            b.set(keys[1], "9")
        pipeline.multi()
        pipeline.mset({key: "7" for key in keys[:3]})
        return pipeline.execute()

    checks.equal("cluster: WATCH, undisturbed", lambda: watched(False), [True])
    checks.raises("cluster: WATCH, disturbed", redis.WatchError, "", lambda: watched(True))
    checks.equal("cluster: a transaction that lost has no effect", lambda: c.mget(keys[:3]), ["7", "9", "7"])
    checks.equal("cluster: EVAL over all partitions", lambda: b.eval(SUM, 37, *keys[3:], 2), 3 * 37)
    loaded = a.script_load(SUM)
    checks.equal("cluster: EVALSHA through another node", lambda: c.evalsha(loaded, 37, *keys[3:], 1), 4 * 37)
    checks.equal("cluster: FUNCTION LOAD", lambda: a.function_load(LIBRARY), "smoke")
    checks.equal("cluster: FCALL through another node", lambda: b.fcall("swap", 2, keys[0], keys[1]), ["7", "9"])
    checks.equal("cluster: SCAN finds every key", lambda: len(set(c.scan_iter(match="smoke:*", count=7))), 40)
    checks.equal("cluster: DBSIZE", lambda: (a.dbsize(), b.dbsize(), c.dbsize()), (40, 40, 40))
    checks.true("cluster: RENAME", lambda: a.rename(keys[39], "elsewhere"))
    checks.equal("cluster: the renamed key through another node", lambda: b.get("elsewhere"), "4")

    def interactive(interfere):
        connection = redis.connection.Connection(port=a.connection_pool.connection_kwargs["port"], decode_responses=True)
        connection.connect()

        def say(*words):
            connection.send_command(*words)
            return connection.read_response()

        try:
            said = [say("TXN.BEGIN"), say("INCR", keys[5]), say("INCR", keys[6])]
            if interfere:
                b.set(keys[6], "0")
            return [*said, say("TXN.COMMIT")]
        finally:
            connection.disconnect()

    checks.equal("cluster: TXN.COMMIT", lambda: interactive(False), ["OK", 5, 5, "OK"])
    checks.raises("cluster: TXN.COMMIT of what has changed", redis.ResponseError, "TXNABORT", lambda: interactive(True))


def digests(cluster, nodes):
    return {cluster.client(node).execute_command("DEBUG", "DIGEST") for node in nodes}


def check_cluster(checks, serve, root, directory, base_port):
    cluster = Cluster(serve, root, directory, base_port)
    try:
        print(f"ready   cluster of {len(cluster.nodes)} nodes", flush=True)
        check_commands(checks, cluster)
        everybody = range(len(cluster.nodes))
        checks.equal("cluster: one digest", lambda: len(digests(cluster, everybody)), 1)

        subprocess.run(["kill", "-KILL", str(cluster.nodes[0]["pid"])], check=True)
        survivor = cluster.client(4)
        keys = {f"after:{i}": str(i) for i in range(20)}
        checks.true("cluster: it goes on after kill -9 of a node", lambda: eventually(lambda: survivor.mset(keys)))
        others = [node for node in everybody if node != 0]

        def found(node):
            return eventually(lambda: len(cluster.client(node).keys("after:*")))

        # What was under way to the dead node is answered UNKNOWN, so reads may have to be asked again.
        checks.equal("cluster: through every other node", lambda: [found(node) for node in others], [20] * 5)
        checks.equal("cluster: one digest again", lambda: len(eventually(lambda: digests(cluster, others))), 1)
        checks.equal("cluster: SIGTERM", cluster.stop, 0)
    finally:
        cluster.kill()
