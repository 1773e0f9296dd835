"""SecantusDB, which writes down how many commands it has run at one moment at most: what the shaper is judged by, seen by the server
itself. Started by mongo_shaped.py.

usage: secantus_watched.py FILE [secantus's own arguments]
"""
import os, sys, threading, time

import secantus.server as server
from secantus.cli import main

# Those that the gate lets pass, and those that end what nobody waits for.
EXEMPT = {"hello", "ismaster", "isMaster", "ping", "buildInfo", "buildinfo", "endSessions", "saslStart", "saslContinue"}
# Long enough that two commands that may run at a time do.
EACH_S = 0.002

path, lock = sys.argv.pop(1), threading.Lock()
running, most, dispatch = 0, 0, server.dispatch


def watched(body, context):
    global running, most
    if next(iter(body), "") in EXEMPT:
        return dispatch(body, context)
    with lock:
        running += 1
        # A reader removes the file, so that the count begins anew.
        if not os.path.exists(path):
            most = 0
        if running > most:
            most = running
            with open(f"{path}.new", "w") as f:
                f.write(str(most))
            os.replace(f"{path}.new", path)
    try:
        time.sleep(EACH_S)
        return dispatch(body, context)
    finally:
        with lock:
            running -= 1


server.dispatch = watched
raise SystemExit(main())
