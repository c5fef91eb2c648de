#!/usr/bin/env python3
"""Records what a Redis server sends into transcripts, in place.

    redis-server --port 7001 --save '' --appendonly no
    ./record.py 7001 commands/*.resp sessions/recorded_*.resp

The language of transcripts is described in `src/transcript.rs`. The expectation after each '> ' line is replaced by what
the server sends, in the form that it has: one '= ' or '~ ' line, or '< ' lines. A '!> ' line is answered differently here,
on purpose: it and its expectation are kept, and only HELLO is sent. All is sent on one connection, and everything in the
server is deleted first.
"""
import re
import socket
import sys

ESCAPES = {"n": 10, "r": 13, "t": 9, "b": 8, "a": 7}


class Connection:
    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def call(self, words):
        """Sends a command. Answers the reply as bytes, and in its compact form with those of its items."""
        self.file.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        self.file.flush()
        return self.reply()

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in b"$*" and rest == b"-1" or kind == b"_":
            return line, "_", []
        if kind in b"$=":
            body = self.file.read(int(rest) + 2)
            text = '"%s"' % escape(body[:-2] if kind == b"$" else body[4:-2])
            return line + body, text if kind == b"$" else "=" + text, []
        if kind in b"*~%":
            items = [self.reply() for _ in range(int(rest) * (2 if kind == b"%" else 1))]
            opening, closing = {b"*": "[]", b"~": ("~[", "]"), b"%": "{}"}[kind]
            texts = [text for _, text, _ in items]
            return line + b"".join(raw for raw, _, _ in items), opening + " ".join(texts) + closing, texts
        return line, line[:-2].decode(errors="replace"), []


def escape(body, special=None):
    """As Rust's escape_ascii."""
    special = special or {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return "".join(special.get(b) or (chr(b) if 32 <= b < 127 else "\\x%02x" % b) for b in body)


def lines(raw):
    """As transcripts show what was received, line by line."""
    text = escape(raw, {9: "\\t", 10: "\\n", 13: "\\r", 92: "\\\\"})
    return text.replace("\\r\\n", "\n").split("\n")[:-1]


def words(line):
    """As inline commands are read."""
    out = []
    for word in re.findall(r'"(?:\\.|[^"\\])*"|\S+', line):
        if word[0] != '"':
            out.append(word.encode())
            continue
        body, at, inner = bytearray(), 0, word[1:-1]
        while at < len(inner):
            if inner[at] != "\\":
                body += inner[at].encode()
                at += 1
            elif re.match(r"\\x[0-9a-fA-F]{2}", inner[at:]):
                body.append(int(inner[at + 2 : at + 4], 16))
                at += 4
            else:
                body.append(ESCAPES.get(inner[at + 1], ord(inner[at + 1])))
                at += 2
        out.append(bytes(body))
    return out


def record(port, path):
    connection = Connection(port)
    connection.call([b"FLUSHALL"])
    out, reply, is_kept = [], None, True
    for line in open(path).read().split("\n"):
        if line.startswith(("<", "= ", "~ ")):
            if is_kept:
                out.append(line)
            elif reply is not None:
                # The first line of what was expected says which form it has.
                raw, text, items = reply
                shown = {"=": ["= " + text], "~": ["~ [%s]" % " ".join(sorted(items))]}
                out += shown.get(line[0]) or ["< " + one for one in lines(raw)]
                reply = None
            continue
        out.append(line)
        is_kept = not line.startswith("> ")
        if line == "resp 3":
            connection.call([b"HELLO", b"3"])
        elif line.startswith("> "):
            reply = connection.call(words(line[2:]))
        elif line.startswith("!> HELLO"):
            connection.call(words(line[3:]))
    open(path, "w").write("\n".join(out))


for path in sys.argv[2:]:
    record(int(sys.argv[1]), path)
