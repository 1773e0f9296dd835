#!/usr/bin/python3
"""A server of MySQL's protocol as a pool of threads reads it: each connection is armed for one event. An event of a connection that has
nothing to read is counted; each answer tells their number as its affected rows. BEGIN opens a transaction.

usage: pooled.py PORT
"""
import select, socket, struct, sys

GREETING = (b"\x0a5.7.0\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<HBHH", 0xa209, 45, 2, 8)
            + b"\x15" + bytes(10) + b"123456789012\0" + b"mysql_native_password\0")
events, open_ones, empty = select.epoll(), {}, 0
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
events.register(listener.fileno(), select.EPOLLIN)
ONCE = select.EPOLLIN | select.EPOLLONESHOT


def packet(number, body):
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def answer(number, in_transaction):
    return packet(number, b"\0" + bytes([min(empty, 250)]) + b"\0" + struct.pack("<HH", 3 if in_transaction else 2, 0))


while True:
    for fd, _ in events.poll():
        if fd == listener.fileno():
            c, _ = listener.accept()
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                c.send(packet(0, GREETING))
                said = c.recv(4096)
            except ConnectionError:  # it only looked whether the port is open, and left the greeting unread
                said = b""
            if not said:
                c.close()
                continue
            c.send(answer(2, False))
            c.setblocking(False)
            open_ones[c.fileno()] = c
            events.register(c.fileno(), ONCE)
            continue
        c = open_ones[fd]
        try:
            command = c.recv(4096)
        except BlockingIOError:
            empty += 1
            continue
        if not command:
            events.unregister(fd)
            open_ones.pop(fd).close()
            continue
        c.send(answer(1, command[5:].startswith(b"BEGIN")))
        events.modify(fd, ONCE)
