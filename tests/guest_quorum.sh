#!/bin/bash
# A Linux guest (emulated: no KVM needed) on QEMU's quorum over three nodes: it writes and reads back with direct I/O while the first
# node is killed, comes back with old data, and is resynced. Takes about a minute. Usage: tests/guest_quorum.sh path/to/plimsoll
set -euo pipefail
. "$(dirname "$0")/guest.sh"
plimsoll=$(realpath "$1")
guest_begin "${2:-target/guest}"

guest_image "$cache" '
bad=0
for i in $(seq 1 60); do
    # A block that nobody wrote before this way: its number, over and over.
    yes "round-$i" | head -c 65536 >/block
    dd if=/block of=/dev/vda bs=64k seek=$((i % 7)) oflag=direct conv=notrunc 2>/dev/null || { echo GUEST-WRITE-FAILED $i; bad=1; }
    for j in 1 2 3; do
        dd if=/dev/vda of=/back bs=64k skip=$((i % 7)) count=1 iflag=direct 2>/dev/null || { echo GUEST-READ-FAILED $i; bad=1; }
        cmp -s /block /back || { echo GUEST-OLD-DATA $i; bad=1; }
    done
    echo GUEST-ROUND $i
    usleep 400000
done
[ $bad = 0 ] && echo GUEST-PASSED
'

config='[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "disk.img", size = "64MiB" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "16MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]'
start_node() { # which
    mkdir -p "$work/$1"
    echo "$config" >"$work/$1/node.toml"
    (cd "$work/$1" && exec "$plimsoll" serve --config node.toml) >"$work/$1/log" 2>&1 &
    nodes[$1]=$!
    pids+=($!)
    node_serves "$work/$1/log"
}
declare -A nodes
for i in 0 1 2; do start_node $i; done

drives=()
for i in 0 1 2; do
    drives+=(-blockdev "driver=nbd,node-name=n$i,server.type=unix,server.path=$work/$i/nbd.sock,export=vol?deadline=50ms&busy=error&replica=write")
done
guest_start "$cache" "$work/serial" 512 "" "${drives[@]}" \
    -blockdev driver=quorum,node-name=q0,vote-threshold=1,read-pattern=fifo,children.0=n0,children.1=n1,children.2=n2 \
    -device virtio-blk-pci,drive=q0
qemu=$!
pids+=($qemu)
round() { # waits until the guest is there
    for _ in $(seq 1200); do
        grep -q "GUEST-ROUND $1\b" "$work/serial" 2>/dev/null && return
        kill -0 $qemu 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/serial"; echo "the guest didn't come to round $1"; exit 1
}
behind() { "$plimsoll" volume show vol --control "$work/$1/control.sock" --json | grep '"behind"'; }
uri() { echo "nbd+unix:///vol?socket=$work/$1/nbd.sock"; }

round 10
kill -9 "${nodes[0]}"
round 20
start_node 0
behind 0 | grep -q "unclean stop"
round 30
"$plimsoll" volume resync vol --replica "$(uri 0)" --from "$(uri 1)" --control "$work/0/control.sock" >"$work/resync" 2>&1 || {
    # QEMU connects again with its next request to that child, which is a write.
    sleep 2
    "$plimsoll" volume resync vol --replica "$(uri 0)" --from "$(uri 1)" --control "$work/0/control.sock"
}
behind 0 | grep -q '"no"'
round 40
# What was brought up now serves alone.
kill -9 "${nodes[1]}" "${nodes[2]}"
round 60
for _ in $(seq 300); do kill -0 $qemu 2>/dev/null || break; sleep 0.1; done
grep "GUEST-PASSED" "$work/serial" || { cat "$work/serial"; exit 1; }
! grep -E "I/O error|FAILED|OLD-DATA" "$work/serial"
