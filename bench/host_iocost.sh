#!/bin/bash
# Host mode's deadlines beside the kernel's io.cost, in an emulated Linux guest (no KVM needed) with cgroup v2: one reader on three replicas,
# each on a disk of its own that takes 4 ms for a read, one at a time in the order of arrival. Noise: eight direct readers of one disk, each disk
# for a second in turn. io.cost is told 95 % of the speed that was measured of a disk, and gives the reader a hundred times the noise's weight,
# by its model alone or by what reads take, too. Rounds alternate, with the same seed of places for all of a round; prints medians over rounds,
# with the least and the greatest. `plain`: reads without a forecast, as the agent's heartbeat was late.
# Usage: bench/host_iocost.sh path/to/plimsoll path/to/libraries [rounds [seconds]]. Takes about rounds x 6 x (seconds + 3).
set -euo pipefail
. "$(dirname "$0")/../tests/guest.sh"
here=$(realpath "$(dirname "$0")")
plimsoll=$(realpath "$1")
libraries=$(realpath "$2")
rounds=${3:-10}
seconds=${4:-12}
guest_begin target/guest-iocost
# Without debugging information: the guest unpacks it into its memory.
strip -o "$work/plimsoll" "$plimsoll"
gcc -O2 -Wall -Wextra -I"$here/../crates/host-c/include" "$here/host_iocost.c" -o "$work/host_iocost" "$libraries/libplimsoll_host_c.a" -lpthread -ldl -lm

guest_image "$cache" '
mkdir -p /cg /run /tmp /mnt/a /mnt/b /mnt/c
mount -t cgroup2 none /cg
mount -t tracefs none /sys/kernel/tracing
mount -t bpf none /sys/fs/bpf
echo +io >/cg/cgroup.subtree_control || echo "GUEST-FAILED no io controller: $(cat /cg/cgroup.controllers)"
mkdir /cg/reader /cg/noise
numbers=""
for d in a b c; do
    echo none >/sys/block/vd$d/queue/scheduler
    echo 0 >/sys/block/vd$d/queue/read_ahead_kb
    mount -t ext4 -o ro,noload /dev/vd$d /mnt/$d || echo "GUEST-FAILED mount vd$d: $(dmesg | tail -n 2 | xargs)"
    numbers="$numbers $(cat /sys/block/vd$d/dev)"
done
iocost() { # 0, weights or latency
    case $1 in
        0) qos="enable=0" ;;
        # By the model alone.
        weights) qos="enable=1 ctrl=user rpct=0 rlat=0 wpct=0 wlat=0 min=100.00 max=100.00" ;;
        # A disk is given less as soon as a fifth of its reads takes more than 6 ms.
        latency) qos="enable=1 ctrl=user rpct=80.00 rlat=6000 wpct=0 wlat=0 min=25.00 max=100.00" ;;
    esac
    for n in $numbers; do
        echo "$n ctrl=user model=linear rbps=1000000000 rseqiops=$rate rrandiops=$rate wbps=1000000000 wseqiops=$rate wrandiops=$rate" >/cg/io.cost.model
        echo "$n $qos" >/cg/io.cost.qos
    done
}
echo "default $(word weight)" >/cg/reader/io.weight; echo "default 1" >/cg/noise/io.weight
export PLIMSOLL_HOST_SOCKET=/run/host.sock
plimsoll host --socket /run/host.sock --disk vda --disk vdb --disk vdc >/tmp/log 2>&1 &
for i in $(seq 600); do [ -S /run/host.sock ] && break; usleep 100000; done
[ -S /run/host.sock ] || echo "GUEST-FAILED $(tail -n 3 /tmp/log | xargs)"
files="/mnt/a/file /mnt/b/file /mnt/c/file"
within() { # cgroup, command: in the background only, where $! is the command then
    echo 0 >/cg/$1/cgroup.procs
    shift
    exec "$@"
}
# Reads teach the agent what a read takes.
echo | host_iocost base 5 99 $files >/dev/null || echo "GUEST-FAILED the first reads"
# What a disk serves when it has more than enough to do: the model is to be a little slower, or io.cost would let in all that comes.
served=$(host_iocost noise 3 /dev/vda)
rate=$((served / 3 * 95 / 100))
echo "GUEST-RATE a full disk served $((served / 3)) reads a second, the model has $rate"
mkfifo /tmp/go
measure() { # name, strategy, io.cost, noise, seed
    iocost $3
    echo 3 >/proc/sys/vm/drop_caches
    : >/tmp/out
    within reader host_iocost $2 $(word seconds) $5 $files </tmp/go >/tmp/out 2>/tmp/err & reader=$!
    exec 3>/tmp/go
    for i in $(seq 3000); do grep -q ready /tmp/out && break; usleep 10000; done
    if [ $4 = 1 ]; then within noise host_iocost noise 1000 /dev/vda /dev/vdb /dev/vdc >/dev/null & noise=$!; usleep 500000; fi
    echo >&3
    wait $reader || echo "GUEST-FAILED $1: $(tail -n 2 /tmp/err | xargs)"
    exec 3>&-
    if [ $4 = 1 ]; then kill $noise; wait $noise; fi
    echo "GUEST-RESULT $1 $(tail -n 1 /tmp/out)"
}
all() { # 1 or 2: which order, seed
    set -- "$2" $([ $1 = 1 ] && echo "alone noise weights latency deadlines both" || echo "both deadlines latency weights noise alone")
    seed=$1; shift
    for name; do
        case $name in
            alone) measure alone base 0 0 $seed ;;
            noise) measure noise base 0 1 $seed ;;
            weights) measure io.cost-weights base weights 1 $seed ;;
            latency) measure io.cost-latency base latency 1 $seed ;;
            deadlines) measure deadlines deadlines 0 1 $seed ;;
            both) measure deadlines+weights deadlines weights 1 $seed ;;
        esac
    done
}
for round in $(seq $(word rounds)); do all $((round % 2 + 1)) $round; done
echo "GUEST-IOCOST $(cat /cg/io.cost.model | head -n 1)"
echo GUEST-DONE
' "virtio_blk" "$work/plimsoll $work/host_iocost"

mkdir "$work/files"
for d in a b c; do
    head -c 192M /dev/urandom >"$work/files/file"
    mkfs.ext4 -q -E nodiscard -O ^has_journal -d "$work/files" "$work/$d.img" 256M >/dev/null
    # Its one thread takes requests in the order of their arrival.
    nbdkit --foreground --exit-with-parent --threads=1 --filter=delay --unix "$work/$d.sock" file "$work/$d.img" rdelay=4ms &
    pids+=($!)
    for _ in $(seq 300); do [ -S "$work/$d.sock" ] && break; sleep 0.1; done
    drives+=(-drive "driver=raw,if=virtio,cache=none,file.driver=nbd,file.server.type=unix,file.server.path=$work/$d.sock")
done
rm "$work/files/file"
guest_start "$cache" "$work/serial" 1024 "rounds=$rounds seconds=$seconds weight=100 cgroup_no_v1=all" -smp 2 "${drives[@]}"
qemu=$!
pids+=($qemu)
# A guest that hangs is ended.
timeout $((rounds * 6 * (seconds + 10) + 300)) tail --pid=$qemu -f /dev/null || kill $qemu
wait $qemu || true
grep -aE "GUEST-(FAILED|IOCOST|RATE)" "$work/serial" | tr -d '\r' || true
grep -aq GUEST-DONE "$work/serial" || { tail -n 30 "$work/serial"; exit 1; }
grep -aq GUEST-FAILED "$work/serial" && exit 1
echo "$rounds rounds of $seconds s, deadline 12 ms; a guest of two processors without hardware acceleration; medians (least to greatest), ms"
grep -a GUEST-RESULT "$work/serial" | tr -d '\r' | gawk '
{ name = $2; if (!(name in names)) order[++found] = name; names[name] = 1; for (i = 3; i <= NF; i += 2) v[name, $i] = v[name, $i] " " $(i + 1) }
END { for (o = 1; o <= found; o++) { name = order[o]; printf "%-18s", name; split("ops P50 P90 P95 P99 refused plain", keys, " ");
    for (j = 1; j <= 7; j++) { k = keys[j]; n = split(v[name, k], a, " "); asort(a, a, "@val_num_asc"); scale = k ~ /^P/ ? 1000 : 1
        printf k ~ /^P/ ? "  %s %.2f (%.2f to %.2f)" : "  %s %.0f (%.0f to %.0f)", k, a[int((n + 1) / 2)] / scale, a[1] / scale, a[n] / scale } print "" } }'
