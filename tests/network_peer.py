"""A process that talks: the smallest node that a test of the network needs.

    python tests/network_peer.py HOST PORT

It listens there, and takes orders on standard input, a line each: `connect HOST PORT`, `connect6
HOST PORT` (the same through a socket of version 6, as gRPC does), `say WORD` (to everybody it is
connected with). It prints `listening`, `connected`, `refused`, `met` when
somebody has connected, `heard WORD`, and `parted` when a connection ends.
"""

import socket
import sys
import threading

connections: list[socket.socket] = []


def tell(text: str) -> None:
    # In one write: print has two where nothing is buffered, and threads speak at once.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def listen_to(connection: socket.socket) -> None:
    try:
        for line in connection.makefile():
            tell(f"heard {line.strip()}")
    except OSError:
        pass
    tell("parted")


def meet(connection: socket.socket) -> None:
    connections.append(connection)
    threading.Thread(target=listen_to, args=(connection,), daemon=True).start()


def connect(host: str, port: str, family: socket.AddressFamily) -> None:
    made = socket.socket(family)
    try:
        made.connect((f"::ffff:{host}" if family is socket.AF_INET6 else host, int(port)))
        meet(made)
    except OSError:
        tell("refused")
    else:
        tell("connected")


def take_orders() -> None:
    for line in sys.stdin:
        match line.split():
            case ["connect" | "connect6" as order, host, port]:
                family = socket.AF_INET6 if order == "connect6" else socket.AF_INET
                threading.Thread(target=connect, args=(host, port, family), daemon=True).start()
            case ["say", word]:
                for connection in connections:
                    connection.sendall(f"{word}\n".encode())


def main() -> None:
    server = socket.create_server((sys.argv[1], int(sys.argv[2])))
    tell("listening")
    threading.Thread(target=take_orders, daemon=True).start()
    while True:
        connection, _ = server.accept()
        meet(connection)
        tell("met")


if __name__ == "__main__":
    main()
