"""The p99 of reads over two replicas, one of them slow. usage: two_replicas.py ADDRESS ADDRESS"""

import sys
import time

import plimsoll

for policy in ("base", "mitt+wait"):
    times = []
    with plimsoll.Volume(sys.argv[1:], policy=policy) as volume:
        for i in range(200):
            began = time.perf_counter()
            volume.read(i * 7919 % 1024 * 4096, 4096, deadline=0.02)
            times.append(time.perf_counter() - began)
    print(f"{policy}: p99 {sorted(times)[198] * 1000:.3f}ms")
