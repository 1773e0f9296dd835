#!/bin/bash
# A Linux guest (emulated: no KVM needed) writes and verifies over two gateways of one RBD image, while its pool moves to the other gateway and
# back, is taken by force from one that has stopped, and from one that was killed and comes back. Ceph's libraries are a fake (crates/rbd/examples/fake_ceph.rs).
# Takes two minutes. Usage: tests/guest_nvme_move.sh path/to/plimsoll path/to/libfake_ceph.so
set -euo pipefail
. "$(dirname "$0")/guest.sh"
plimsoll=$(realpath "$1")
fake=$(realpath "$2")
guest_begin target/guest-nvme-move

guest_image "$cache" '
network
connect() { # port
    host=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$1,nqn=nqn.2026-11.plimsoll:vol,hostnqn=$host,hostid=11111111-2222-3333-4444-555555555555,nr_io_queues=2,reconnect_delay=1,keep_alive_tmo=5" \
        >/dev/nvme-fabrics || echo "GUEST-FAILED connect $1"
}
connect $(word a)
connect $(word b)
for i in $(seq 200); do [ -b /dev/nvme0n1 ] && break; usleep 50000; done
s=$(ls -d /sys/class/nvme-subsystem/*)
for i in $(seq 200); do [ $(ls -d $s/nvme*/nvme*c*n* | wc -l) = 2 ] && break; usleep 50000; done
echo "GUEST-PATHS $(cat $s/nvme*/nvme*c*n*/ana_state | xargs)"
n=0
# Each pass writes other contents to all blocks, and reads them.
while [ "$(wget -q -O - http://10.0.2.2:$(word s)/over 2>/dev/null)" != yes ]; do
    n=$((n + 1))
    fio --name=w$n --filename=/dev/nvme0n1 --rw=randwrite --bs=4k --size=4M --direct=1 --ioengine=libaio --iodepth=4 --verify=crc32c --verify_fatal=1 \
        --randseed=$n --output-format=terse --terse-version=3 >/out 2>&1 || { echo "GUEST-FAILED fio: $(tail -n 3 /out | xargs)"; break; }
    echo "GUEST-PASS $n controllers $(cat /sys/class/nvme/nvme*/state | xargs) paths $(cat $s/nvme*/nvme*c*n*/ana_state | xargs), IOPS $(awk -F";" "{print \$8, \$49, \"error\", \$5}" /out)"
done
dmesg | grep -E "I/O error, dev nvme[0-9]+n[0-9]+,|Buffer I/O error" && echo "GUEST-FAILED the kernel saw errors"
echo GUEST-END
' "virtio_net nvme_tcp libcrc32c crc32c_generic crc32c-intel" fio

for name in librados.so.2 librbd.so.1; do ln -s "$fake" "$work/$name"; done
touch "$work/ceph.conf"
truncate -s 64M "$work/pool.image"
config() { # path
    cat <<CONFIG
[listen]
unix = "nbd.sock"
nvme_tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "own"
device = { null = true, size = "64MiB" }
[[pool]]
name = "p"
device = { rbd = "pool/image", conf = "$work/ceph.conf", libraries = "$work", format = true }
sched = "noop"
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "4MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
[[subsystem]]
nqn = "nqn.2026-11.plimsoll:vol"
export = "vol"
path = $1
CONFIG
}
declare -A node port
start() { # gateway
    : >"$work/$1/log"
    (cd "$work/$1" && exec "$plimsoll" serve --config node.toml) >"$work/$1/log" 2>&1 &
    node[$1]=$!
    pids+=($!)
    node_serves "$work/$1/log"
}
for n in a b; do
    mkdir "$work/$n"
    config $([ $n = a ] && echo 1 || echo 2) >"$work/$n/node.toml"
    start $n
    port[$n]=$("$plimsoll" status --json --control "$work/$n/control.sock" | grep -o '"nvme_tcp": *"[^"]*"' | grep -o '[0-9]*"$' | tr -d '"')
done
moved() { # from, to, options: seconds that it took
    local begun=$EPOCHREALTIME
    "$plimsoll" pool move p --to "$work/$2/control.sock" --disconnect ${3:-} --control "$work/$1/control.sock" >"$work/moved" 2>&1 || { cat "$work/moved"; exit 1; }
    echo "moved from $1 to $2 in $(awk "BEGIN { printf \"%.2f\", $EPOCHREALTIME - $begun }") s ${3:-}"
}
# What the guest asks: whether it is over.
mkdir "$work/www"
touch "$work/serial" "$work/http"
echo no >"$work/www/over"
python3 -u -m http.server --bind 127.0.0.1 --directory "$work/www" 0 >"$work/http" 2>/dev/null &
pids+=($!)
until grep -q Serving "$work/http"; do sleep 0.1; done
s=$(grep -o 'port [0-9]*' "$work/http" | grep -o '[0-9]*')
guest_start "$cache" "$work/serial" 512 "a=${port[a]} b=${port[b]} s=$s" -netdev user,id=n -device virtio-net-pci,netdev=n
qemu=$!
pids+=($qemu)
passes() { grep -ac GUEST-PASS "$work/serial" || true; }
more() { # passes: waits until the guest has made so many more
    local until=$(($(passes) + $1))
    for _ in $(seq 1200); do
        [ "$(passes)" -lt $until ] || return 0
        ! grep -aq 'GUEST-FAILED\|GUEST-END' "$work/serial" || break
        sleep 0.1
    done
    grep -a GUEST "$work/serial"
    echo "the guest makes no progress"
    exit 1
}
more 1
moved a b
more 2
moved b a
more 2
# The gateway that has it hangs; what it still does when it wakes is refused.
kill -STOP "${node[a]}"
moved a b --force
more 2
kill -CONT "${node[a]}"
more 2
# One that lost the lock has it again after a restart only. Then the other is killed, and comes back.
again() { # gateway: at the port that its host knows
    sed -i "s/^nvme_tcp = .*/nvme_tcp = \"127.0.0.1:${port[$1]}\"/" "$work/$1/node.toml"
    start "$1"
}
kill "${node[a]}"
wait "${node[a]}" || true
again a
more 1
kill -9 "${node[b]}"
"$plimsoll" pool take p --force --control "$work/a/control.sock"
more 2
again b
more 2
! grep -a GUEST-PASS "$work/serial" | tail -n 1 | grep -v 'controllers live live' || { echo "a controller isn't back"; exit 1; }
moved a b
more 2
echo yes >"$work/www/over"
wait $qemu || true
grep -a GUEST "$work/serial"
! grep -aq GUEST-FAILED "$work/serial"
grep -aq GUEST-END "$work/serial"
echo "passed"
