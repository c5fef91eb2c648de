#!/usr/bin/env python3
"""Writes redis.rs: what a Redis server says of the commands that there are here, as a table.

    redis-server --port 7001 --save '' --appendonly no
    ./record.py 7001 > redis.rs
"""
import socket
import sys

COMMANDS = """
get set setnx setex psetex getset getdel getex mget mset msetnx append strlen getrange substr setrange incr decr incrby
decrby incrbyfloat del unlink exists type touch rename renamenx copy move keys scan randomkey expire pexpire expireat
pexpireat ttl pttl expiretime pexpiretime persist dbsize flushall flushdb swapdb hset hsetnx hmset hget hmget hgetall
hdel hexists hlen hkeys hvals hstrlen hincrby hincrbyfloat hscan hrandfield eval evalsha eval_ro evalsha_ro fcall
fcall_ro ping echo hello auth quit reset select info time multi exec discard watch unwatch debug save bgsave lastsave
publish spublish subscribe unsubscribe psubscribe punsubscribe ssubscribe sunsubscribe wait role
""".split()
CONTAINERS = {
    "acl": "cat deluser dryrun genpass getuser help list load log save setuser users whoami",
    "client": "caching getname getredir help id info kill list no-evict pause reply setname tracking trackinginfo "
    "unblock unpause",
    "command": "count docs getkeys getkeysandflags help info list",
    "config": "get help resetstat rewrite set",
    "function": "delete dump flush help kill list load restore stats",
    "latency": "doctor graph help histogram history latest reset",
    "memory": "doctor help malloc-stats purge stats usage",
    "module": "help list",
    "object": "encoding freq help idletime refcount",
    "pubsub": "channels help numpat numsub shardchannels shardnumsub",
    "script": "debug exists flush help kill load",
    "slowlog": "get help len reset",
}


class Connection:
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")
        self.call("HELLO", "3")

    def call(self, *words):
        self.file.write(b"*%d\r\n" % len(words))
        for word in words:
            self.file.write(b"$%d\r\n%s\r\n" % (len(word), word.encode()))
        self.file.flush()
        return self.reply()

    def reply(self):
        """A reply, as its kind and its content."""
        line = self.file.readline()[:-2].decode()
        kind, rest = line[0], line[1:]
        if kind == "$":
            return kind, self.file.read(int(rest) + 2)[:-2].decode()
        if kind in "*~":
            return kind, [self.reply() for _ in range(int(rest))]
        if kind == "%":
            return kind, [(self.reply(), self.reply()) for _ in range(int(rest))]
        return kind, rest


def text(string):
    return '"' + string.replace("\\", "\\\\").replace('"', '\\"') + '"'


def tree(reply):
    """A reply as an expression of type `Shown`."""
    kind, content = reply
    if kind == "$":
        return f"Bulk({text(content)})"
    if kind == "+":
        return f"Status({text(content)})"
    if kind == ":":
        return f"Int({content})"
    if kind == "%":
        return "Map(&[" + ", ".join(f"({text(k[1])}, {tree(v)})" for k, v in content) + "])"
    name = {"*": "Array", "~": "Set"}[kind]
    return f"{name}(&[" + ", ".join(map(tree, content)) + "])"


def words(reply):
    return "&[" + ", ".join(text(item[1]) for item in reply[1]) + "]"


def entry(redis, name, subcommands):
    ((_, info),) = redis.call("COMMAND", "INFO", name)[1]
    _, arity, flags, first, last, step, categories, tips, keys, _ = info
    (((_, _), (_, docs)),) = redis.call("COMMAND", "DOCS", name)[1]
    docs = [(key, value) for key, value in docs if key[1] != "subcommands"]
    shown = ", ".join(f"({text(key[1])}, {tree(value)})" for key, value in docs)
    out = (
        f'Reference {{ name: {text(name.rpartition("|")[2])}, arity: {arity[1]}, flags: {words(flags)}, '
        f"keys: ({first[1]}, {last[1]}, {step[1]}), categories: {words(categories)}, tips: {words(tips)}, "
        f"key_specs: &[{', '.join(map(tree, keys[1]))}], docs: &[{shown}], subcommands: &["
    )
    if not subcommands:
        return out + "] }"
    subs = [f"        {entry(redis, name + '|' + sub, [])}," for sub in sorted(subcommands)]
    return out + "\n" + "\n".join(subs) + "\n    ] }"


redis = Connection(int(sys.argv[1]))
print("//! What Redis 7.0 says of its commands: written by `record.py`, not by hand.\n")
print("use super::Reference;\nuse super::Shown::{Array, Bulk, Int, Map, Set, Status};\n")
print("/// In order of name.\n#[rustfmt::skip]\npub(super) static REDIS: &[Reference] = &[")
for name in sorted(COMMANDS + list(CONTAINERS)):
    print(f"    {entry(redis, name, CONTAINERS.get(name, '').split())},")
print("];")
