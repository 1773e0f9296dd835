#!/usr/bin/python3
"""A server with a thread for each connection, for the tests: it answers after a while and tells how many requests it had at a time.

usage: asked.py generic|mongo PORT

generic: a line is a request, SECONDS to take; the answer is a line with the highest number at a time. `fork` first makes a child that
closes what it inherited and ends. mongo: OP_MSG; `hello` with maxAwaitTimeMS is answered after that time and not counted, all else after 10 ms.
"""
import os, socket, struct, sys, threading, time

mode, port = sys.argv[1], int(sys.argv[2])
lock, inside, high = threading.Lock(), 0, 0


def taking(seconds):
    global inside, high
    with lock:
        inside += 1
        high = max(high, inside)
    time.sleep(seconds)
    with lock:
        inside -= 1
        return high


def generic(c):
    for line in c.makefile("rb"):
        words = line.split()
        if words[0] == b"fork":
            pid = os.fork()
            if pid == 0:
                c.close()
                os._exit(0)
            os.waitpid(pid, 0)
        c.sendall(b"%d\n" % taking(float(words[-1])))


def receive(c, n):
    data = b""
    while len(data) < n:
        more = c.recv(n - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


def mongo(c):
    while True:
        length, request, _, op = struct.unpack("<iiii", receive(c, 16))
        body = receive(c, length - 16)
        assert op == 2013, op
        command = body[10:].split(b"\0")[0]
        if command == b"hello":
            at = body.find(b"maxAwaitTimeMS\0")
            if at >= 0:
                time.sleep(struct.unpack("<i", body[at + 15:at + 19])[0] / 1000)
            most = 0
        else:
            most = taking(0.01)
        document = b"\x10high\0" + struct.pack("<i", most) + b"\x10ok\0\x01\0\0\0\0"
        document = struct.pack("<i", len(document) + 4) + document
        answer = struct.pack("<iB", 0, 0) + document
        c.sendall(struct.pack("<iiii", 16 + len(answer), 1, request, 2013) + answer)


def serve(c):
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        (generic if mode == "generic" else mongo)(c)
    except (ConnectionError, OSError):
        pass
    finally:
        c.close()


listener = socket.create_server(("127.0.0.1", port), backlog=512)
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
