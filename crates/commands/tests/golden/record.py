#!/usr/bin/env python3
"""Records the replies of a Redis server into golden sessions, in place.

    redis-server --port 7001 --save '' --appendonly no
    ./record.py 7001 *.txt

Every line that begins with '> ' or 's> ' is sent (RESP3) and the line after it replaced by the reply.
'!> ' lines and their replies are kept and not sent. Everything in the server is deleted first.
"""
import socket
import sys


class Connection:
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def call(self, words):
        self.file.write(b"*%d\r\n" % len(words))
        for word in words:
            self.file.write(b"$%d\r\n%s\r\n" % (len(word), word))
        self.file.flush()
        return self.reply()

    def reply(self):
        line = self.file.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            body = self.file.read(int(rest) + 2)[:-2]
            return '"' + escape(body) + '"'
        if kind == b"=":
            return "=" + '"' + escape(self.file.read(int(rest) + 2)[4:-2]) + '"'
        if kind in b"*~%":
            items = [self.reply() for _ in range(int(rest) * (2 if kind == b"%" else 1))]
            opening, closing = {b"*": "[]", b"~": ("~[", "]"), b"%": "{}"}[kind]
            return opening + " ".join(items) + closing
        if kind == b"_":
            return "_"
        return line.decode()


def escape(body):
    """As Rust's escape_ascii."""
    special = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return "".join(special.get(b) or (chr(b) if 32 <= b < 127 else "\\x%02x" % b) for b in body)


def words(line):
    out, i = [], 0
    while i < len(line):
        if line[i] == " ":
            i += 1
            continue
        word = bytearray()
        if line[i] != '"':
            while i < len(line) and line[i] != " ":
                word += line[i].encode()
                i += 1
        else:
            i += 1
            while line[i] != '"':
                if line[i] == "\\":
                    i += 1
                    if line[i] == "x":
                        word.append(int(line[i + 1 : i + 3], 16))
                        i += 3
                        continue
                    word += {"n": b"\n", "r": b"\r", "t": b"\t"}.get(line[i], line[i].encode())
                else:
                    word += line[i].encode()
                i += 1
            i += 1
        out.append(bytes(word))
    return out


def record(port, path):
    connection = Connection(port)
    connection.call([b"HELLO", b"3"])
    connection.call([b"FLUSHALL"])
    lines, out, i = open(path).read().split("\n"), [], 0
    while i < len(lines):
        line = lines[i]
        i += 1
        out.append(line)
        if not (line.startswith("> ") or line.startswith("s> ") or line.startswith("!> ")):
            continue
        old = None
        if i < len(lines) and lines[i] and not lines[i].startswith(("> ", "s> ", "!> ", "#")):
            old = lines[i]
            i += 1
        if line.startswith("!"):
            out.append(old or "?")
            continue
        reply = connection.call(words(line.split("> ", 1)[1]))
        if line.startswith("s"):
            reply = "[" + " ".join(sorted(reply[1:-1].split(" "))) + "]"
        out.append(reply)
    open(path, "w").write("\n".join(out).rstrip("\n") + "\n")


for path in sys.argv[2:]:
    record(int(sys.argv[1]), path)
