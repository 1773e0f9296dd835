#!/bin/bash
# Four Linux guests (emulated: no KVM needed) on fenced volumes over a disk and a cache's flash, both modelled in real time: the first
# is measured alone, then beside three that do all they can, by what the node says of its volume. Every guest checks what it reads.
# Takes two minutes. Usage: tests/guest_fence.sh path/to/plimsoll
set -euo pipefail
. "$(dirname "$0")/guest.sh"
plimsoll=$(realpath "$1")
seconds=${SECONDS_MEASURED:-25}
guest_begin "${2:-target/guest-fence}"

guest_image "$cache" '
me=$(sed "s/.*me=\([^ ]*\).*/\1/" /proc/cmdline)
pause=$(sed "s/.*pause=\([^ ]*\).*/\1/" /proc/cmdline)
bad=0
seed=$((me + 7))
draw() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); n=$((seed / 65536 % 256)); }
# What block n of this guest holds: two numbers, over and over.
block() { yes "guest $me block $1 version $2" | head -c 16384; }
awk -v me=$me "BEGIN { for (n = 0; n < 256; n++) {
    s = line = \"guest \" me \" block \" n \" version 0\n\"; while (length(s) < 16384) s = s s; printf \"%s\", substr(s, 1, 16384) } }" >/fill
dd if=/fill of=/dev/vda bs=128k oflag=direct 2>/dev/null || { bad=1; echo GUEST-FILL-FAILED; }
echo GUEST-FILLED
while [ $bad = 0 ]; do
    draw
    dd if=/dev/vda of=/back bs=16k skip=$n count=1 iflag=direct 2>/dev/null || { bad=1; echo GUEST-READ-FAILED $n; }
    version=0
    [ -f /v$n ] && version=$(cat /v$n)
    block $n $version | cmp -s - /back || { bad=1; echo GUEST-OLD-DATA block $n version $version: $(head -c 40 /back); }
    if [ $((seed / 64 % 4)) = 0 ]; then
        draw
        block $n $seed >/out
        dd if=/out of=/dev/vda bs=16k seek=$n oflag=direct conv=notrunc,fsync 2>/dev/null || { bad=1; echo GUEST-WRITE-FAILED $n; }
        echo $seed >/v$n
    fi
    i=$((i + 1))
    [ $((i % 50)) = 0 ] && echo GUEST-ROUND $i
    usleep $pause
done
echo GUEST-BAD
'

{
    cat <<'CONFIG'
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "p.img", size = "1GiB", model = "hdd-160g-7200" }
sched = "noop"
[pool.cache]
file = "fast.img"
device_size = "256MiB"
model = "vf-sata-60g"
sharing = "pervolume"
extent = "4KiB"
weu = "128KiB"
dedup = "off"
codec = "none"
mode = "back"
[pool.fence]
slots = 4
[[tenant]]
name = "t"
class = "best-effort"
[[grant]]
peer = "local"
volumes = ["*"]
CONFIG
    for i in 0 1 2 3; do
        printf '[[volume]]\nname = "v%d"\npool = "p"\nsize = "64MiB"\ntenant = "t"\ncache_size = "2MiB"\nslots = 1\n' $i
    done
} >"$work/node.toml"
(cd "$work" && exec "$plimsoll" serve --config node.toml) >"$work/log" 2>&1 &
pids+=($!)
node_serves "$work/log"
cli() { "$plimsoll" "$@" --control "$work/control.sock"; }

declare -A guests
start() { # which, microseconds between its rounds
    guest_start "$cache" "$work/serial$1" 128 "me=$1 pause=$2" \
        -blockdev "driver=nbd,node-name=d0,server.type=unix,server.path=$work/nbd.sock,export=v$1" -device virtio-blk-pci,drive=d0
    guests[$1]=$!
    pids+=($!)
}
comes_to() { # which, words on its console
    for _ in $(seq 6000); do
        grep -q "$2" "$work/serial$1" 2>/dev/null && return
        kill -0 "${guests[$1]}" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/serial$1"; echo "guest $1 didn't come to $2"; exit 1
}

start 0 60000
comes_to 0 "GUEST-ROUND 50"
cli fence baseline v0 --seconds "$seconds" --out "$work/v0.json"
for i in 1 2 3; do start $i 1; done
for i in 1 2 3; do comes_to $i "GUEST-ROUND 50"; done
cli fence status p --baseline "$work/v0.json" --seconds "$seconds"
cli fence status p --baseline "$work/v0.json" --seconds "$seconds" --json >"$work/deviation.json"
cli fence status p
for i in 0 1 2 3; do
    ! grep -E "GUEST-BAD|I/O error" "$work/serial$i" || { echo "guest $i read what it didn't write"; exit 1; }
    kill -0 "${guests[$i]}" || { cat "$work/serial$i"; echo "guest $i has ended"; exit 1; }
done
cli fence status p --json >"$work/status.json"
# Emulators share the processors with the node, so how much it deviates is shown and no condition; that slots held everybody is.
python3 - "$work/deviation.json" "$work/status.json" <<'CHECK'
import json, sys
one, status = json.load(open(sys.argv[1]))[0], json.load(open(sys.argv[2]))
print(f"response deviates by {one['response_deviation_percent']:.1f} % beside three guests")
assert all(s["used"] > 0 for s in status["slots"]), status["slots"]
assert all(v["requests"] > 100 and v["waited_us"] > 0 for v in status["volumes"]), status["volumes"]
CHECK
