#!/usr/bin/env python3
"""Records what a Redis server sends into transcripts, in place.

    redis-server --port 7001 --save '' --appendonly no
    ./record.py 7001 recorded_*.resp

The lines after each '> ' line, up to the next that does not begin with '< ', are replaced by what the server sends.
A '!> ' line is answered differently here, on purpose: it and its lines are kept, and only HELLO is sent. All is sent on one
connection, and everything in the server is deleted first.
"""
import ast
import re
import socket
import sys


def record(port, path):
    def connect():
        return socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def send(file, words):
        file.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        file.flush()

    def reply(file):
        line = file.readline()
        kind, count = line[:1], line[1:-2]
        if kind in b"$=":
            return line + (file.read(int(count) + 2) if count != b"-1" else b"")
        if kind in b"*~%" and count != b"-1":
            return line + b"".join(reply(file) for _ in range(int(count) * (2 if kind == b"%" else 1)))
        return line

    file = connect()
    send(file, [b"FLUSHALL"])
    reply(file)
    out, kept = [], True
    for line in open(path).read().split("\n"):
        if line.startswith("> "):
            kept = False
            out.append(line)
            words = re.findall(r'"(?:\\.|[^"])*"|\S+', line[2:])
            send(file, [ast.literal_eval("b" + w) if w[0] == '"' else w.encode() for w in words])
            out += ["< " + l for l in escape(reply(file)).split("\n")[:-1]]
        elif line.startswith("!> "):
            kept = True
            out.append(line)
            if line.startswith("!> HELLO"):
                send(file, [w.encode() for w in line[3:].split()])
                reply(file)
        elif not line.startswith("<"):
            out.append(line)
        elif kept:
            out.append(line)
    open(path, "w").write("\n".join(out))


def escape(body):
    """As the test shows what it received: see `Server::take`."""
    special = {9: "\\t", 10: "\\n", 13: "\\r", 92: "\\\\"}
    shown = "".join(special.get(b) or (chr(b) if 32 <= b < 127 else "\\x%02x" % b) for b in body)
    return shown.replace("\\r\\n", "\n")


for path in sys.argv[2:]:
    record(int(sys.argv[1]), path)
