#!/bin/bash
# The kernel's NVMe/TCP target (nvmet) and a node, both in one emulated Linux guest, with one load generator: reads and writes of 4 KiB at
# random places of files in the guest's memory. Targets alternate; prints medians over rounds, and the medians of the ratios to nvmet.
# Processor time of a target: that of the whole guest during the load without the generator's own, because nvmet's is the kernel's.
# Usage: bench/nvmet_guest.sh path/to/plimsoll path/to/fronts [rounds [seconds]]. Takes about rounds x 16 x seconds.
set -euo pipefail
. "$(dirname "$0")/../tests/guest.sh"
plimsoll=$(realpath "$1")
fronts=$(realpath "$2")
rounds=${3:-5}
seconds=${4:-4}
guest_begin target/guest-nvmet
# Without debugging information: the guest unpacks them into its memory.
strip -o "$work/plimsoll" "$plimsoll"
strip -o "$work/fronts" "$fronts"

guest_image "$cache" '
ifconfig lo 127.0.0.1 up
mkdir -p /data /tmp
mount -t tmpfs -o size=300m tmpfs /data
mount -t configfs none /sys/kernel/config
export PLIMSOLL_FRONTS_MIB=64
dd if=/dev/zero of=/data/nvmet.img bs=1M count=64 2>/dev/null
nvmet=/sys/kernel/config/nvmet
s=$nvmet/subsystems/nqn.2026-11.test:nvmet
mkdir $s $s/namespaces/1 $nvmet/ports/1
echo 1 >$s/attr_allow_any_host
echo -n /data/nvmet.img >$s/namespaces/1/device_path
echo 1 >$s/namespaces/1/enable || echo "GUEST-FAILED namespace: $(dmesg | tail -n 2 | xargs)"
p=$nvmet/ports/1
echo tcp >$p/addr_trtype; echo ipv4 >$p/addr_adrfam; echo 127.0.0.1 >$p/addr_traddr; echo 4420 >$p/addr_trsvcid
ln -s $s $p/subsystems/ || echo "GUEST-FAILED port: $(dmesg | tail -n 2 | xargs)"
cat >/data/node.toml <<CONFIG
[listen]
unix = "nbd.sock"
tcp = "127.0.0.1:10809"
nvme_tcp = "127.0.0.1:4421"
[control]
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "p.img", size = "128MiB" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "64MiB"
tenant = "t"
[[subsystem]]
nqn = "nqn.2026-11.test:vol"
export = "vol"
[[grant]]
peer = "local"
volumes = ["*"]
CONFIG
(cd /data && plimsoll serve --config node.toml >/data/log 2>&1) &
for i in $(seq 600); do grep -q serves /data/log && break; usleep 100000; done
grep -q serves /data/log || echo "GUEST-FAILED $(tail -n 3 /data/log | xargs)"
# In microseconds, as the scheduler measures it: a guest that is short of processors loses timer ticks, which /proc/stat counts.
busy() { awk "/^cpu[0-9]/{sum+=\$8} END{printf \"%.0f\", sum/1000}" /proc/schedstat; }
measure() { # name, protocol, address, export, operation, depth, seconds
    a=$(busy)
    out=$(fronts load $2 $3 $4 $5 $6 $7 2>&1) || echo "GUEST-FAILED load $*: $(echo $out | tail -c 200)"
    b=$(busy)
    echo "GUEST-$8 $1 $5 $6 $(echo $out | tail -c 300) run_us $((b - a))"
}
all() { # operation, depth, seconds, word
    measure nvmet nvme 127.0.0.1:4420 nqn.2026-11.test:nvmet $1 $2 $3 $4
    measure plimsoll-nvme nvme 127.0.0.1:4421 nqn.2026-11.test:vol $1 $2 $3 $4
    measure plimsoll-nbd nbd 127.0.0.1:10809 vol $1 $2 $3 $4
}
a=$(busy); sleep 3; echo "GUEST-IDLE $(($(busy) - a)) us in 3 s"
# Blocks of both files are written before they are read, and caches are warm.
all write 32 2 WARM
for round in $(seq $(word rounds)); do
    for op in read write; do
        for depth in 1 32; do all $op $depth $(word seconds) RESULT; done
    done
done
dmesg | grep -E "nvmet|BUG|Oops" | head -n 5 | sed "s/^/GUEST-KERNEL /"
echo GUEST-DONE
' "configfs nvmet nvmet_tcp libcrc32c crc32c_generic" "$work/plimsoll $work/fronts"

guest_start "$cache" "$work/serial" 1536 "rounds=$rounds seconds=$seconds" -smp 2
qemu=$!
pids+=($qemu)
wait $qemu || true
grep -aE "GUEST-(FAILED|IDLE|KERNEL|WARM)" "$work/serial" | tr -d '\r' || true
grep -aq GUEST-DONE "$work/serial" || { tail -n 20 "$work/serial"; exit 1; }
grep -aq GUEST-FAILED "$work/serial" && exit 1
echo "$rounds rounds of $seconds s, 4 KiB; a guest of two processors without hardware acceleration; medians (least to greatest)"
grep -a GUEST-RESULT "$work/serial" | tr -d '\r' | gawk '
{
    name = $2; load = $3 " " $4; delete x
    for (i = 5; i < NF; i += 2) x[$i] = $(i + 1)
    if (!(x["requests"] > 0 && x["iops"] > 0)) { print "no requests were counted: " $0; failed = 1; exit 1 }
    cost = (x["run_us"] - x["cpu_us"]) / x["requests"]
    n = ++count[load, name]
    iops[load, name, n] = x["iops"]; us[load, name, n] = cost; p99[load, name, n] = x["p99_us"]
    loads[load] = 1; names[name] = 1
}
function median(a, n) { asort(a); return a[int((n + 1) / 2)] }
function spread(v, load, name,   a, i, n) {
    n = count[load, name]; for (i = 1; i <= n; i++) a[i] = v[load, name, i]
    asort(a); return sprintf("%.0f (%.0f to %.0f)", a[int((n + 1) / 2)], a[1], a[n])
}
function ratio(v, load, name,   a, i, n) {
    n = count[load, name]; for (i = 1; i <= n; i++) a[i] = v[load, name, i] / v[load, "nvmet", i]
    return median(a, n)
}
END {
    if (failed) exit 1
    PROCINFO["sorted_in"] = "@ind_str_asc"
    for (load in loads) for (name in names)
        printf "%-10s %-14s IOPS %-24s ratio %.2f  us of processor a request %-20s ratio %.2f  p99 us %s\n", load, name,
            spread(iops, load, name), ratio(iops, load, name), spread(us, load, name), ratio(us, load, name), spread(p99, load, name)
}'
