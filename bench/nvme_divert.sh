#!/bin/bash
# The reads that one refused read diverts: an emulated Linux guest (no KVM needed) reads over two paths with the policy numa, so that one
# path has all reads. That path refuses one of a thousand with the status of a late read (`plimsoll inject` on a copy). After each refusal the
# kernel sends the namespace's reads to the other path until it has read the ANA log page. Prints reads of each path, with refusals and without.
# Usage: bench/nvme_divert.sh path/to/plimsoll [seconds]. Takes about 6 x (seconds + 8).
set -euo pipefail
. "$(dirname "$0")/../tests/guest.sh"
plimsoll=$(realpath "$1")
seconds=${2:-15}
guest_begin target/guest-nvme-divert

guest_image "$cache" '
network
id=11111111-2222-3333-4444-555555555555
connect() { # port
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$1,nqn=nqn.2026-11.plimsoll:data,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id,hostid=$id,nr_io_queues=2" >/dev/nvme-fabrics || echo GUEST-FAILED connect
}
connect $(word a)
for i in $(seq 200); do [ -b /dev/nvme0n1 ] && break; usleep 50000; done
connect $(word b)
s=$(ls -d /sys/class/nvme-subsystem/*)
for i in $(seq 200); do [ $(ls -d $s/nvme*/nvme*c*n* | wc -l) = 2 ] && break; usleep 50000; done
echo numa >$s/iopolicy
paths() { for c in nvme0 nvme1; do awk "{print \$1}" $s/$c/nvme*c*n*/stat; done | xargs; }
for depth in 1 4 16; do
    for mode in none some; do
        # The node refuses nothing, or one of a thousand, while it says so.
        echo "GUEST-ASKS $mode $depth"
        while [ "$(wget -q -O - http://10.0.2.2:$(word s)/$mode-$depth 2>/dev/null)" != set ]; do usleep 200000; done
        before=$(paths)
        fio --name=r --filename=/dev/nvme0n1 --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=$depth --time_based \
            --runtime=$(word seconds) --randseed=$depth --output-format=terse --terse-version=3 >/out || echo "GUEST-FAILED fio"
        echo "GUEST-RESULT $mode $depth before $before after $(paths) $(awk -F";" "{split(\$26,a,\"=\"); split(\$30,x,\"=\"); print \"error\", \$5, \"iops\", \$8, \"p50_us\", a[2], \"p99_us\", x[2]}" /out)"
    done
done
echo GUEST-DONE
' "virtio_net nvme_tcp libcrc32c crc32c_generic crc32c-intel" fio

config() { # path, or nothing before there are data
    cat <<CONFIG
[listen]
unix = "nbd.sock"
nvme_tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "disk.img", size = "512MiB" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "data"
pool = "p"
size = "256MiB"
tenant = "t"
read_only = true
[[subsystem]]
nqn = "nqn.2026-11.plimsoll:data"
export = "data?replica=read&deadline=10s&busy=error"
path = $1
[[grant]]
peer = "local"
volumes = ["*"]
CONFIG
}
# Two new volumes have the same data: none.
for n in 1 2; do
    mkdir -p "$work/$n" "$work/said"
    config $n >"$work/$n/node.toml"
    (cd "$work/$n" && exec "$plimsoll" serve --config node.toml) >"$work/$n/log" 2>&1 &
    pids+=($!)
    node_serves "$work/$n/log"
done
port() { "$plimsoll" status --json --control "$work/$1/control.sock" | grep -o '"nvme_tcp": *"[^"]*"' | grep -o '[0-9]*"$' | tr -d '"'; }
said=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
busybox httpd -f -p 127.0.0.1:"$said" -h "$work/said" &
pids+=($!)
# Ends if a node, the server or the guest has ended: nobody would answer.
all_run() {
    for p in "${pids[@]}"; do
        kill -0 "$p" 2>/dev/null || { echo "process $p has ended"; tail -n 5 "$work"/*/log; tail -n 20 "$work/serial"; exit 1; }
    done
}
guest_start "$cache" "$work/serial" 768 "a=$(port 1) b=$(port 2) s=$said seconds=$seconds" -netdev user,id=n -device virtio-net-pci,netdev=n
qemu=$!
pids+=($qemu)
inject() { "$plimsoll" inject "$@" --control "$work/1/control.sock"; }
for depth in 1 4 16; do
    for mode in none some; do
        while ! grep -aq "GUEST-ASKS $mode $depth" "$work/serial" 2>/dev/null; do
            all_run
            sleep 0.1
        done
        if [ $mode = some ]; then inject data --busy 40ms --share 0.1% --for 1h --seed $depth >/dev/null; fi
        echo -n set >"$work/said/$mode-$depth"
        while ! grep -aq "GUEST-RESULT $mode $depth" "$work/serial"; do
            all_run
            sleep 0.1
        done
        if [ $mode = some ]; then
            echo "GUEST-REFUSED $depth $(inject --list --json | grep -o '"hit": *[0-9]*' | grep -o '[0-9]*')" >>"$work/refused"
            inject data --stop >/dev/null
        fi
    done
done
wait $qemu || true
grep -a GUEST-FAILED "$work/serial" && exit 1
echo "random reads of 4 KiB, $seconds s for each; a guest without hardware acceleration"
cat <(grep -a GUEST-RESULT "$work/serial" | tr -d '\r') "$work/refused" | gawk '
/GUEST-REFUSED/ { refused[$2] = $3 }
/GUEST-RESULT/ { one[$3, $2] = $8 - $5; two[$3, $2] = $9 - $6; rest[$3, $2] = ""; for (i = 10; i <= NF; i++) rest[$3, $2] = rest[$3, $2] " " $i; iops[$3, $2] = $13 }
END {
    for (d = 1; d <= 16; d *= 4) {
        printf "depth %-2d  no refusals: reads %d and %d;%s\n", d, one[d, "none"], two[d, "none"], rest[d, "none"]
        r = refused[d]; all = one[d, "some"] + two[d, "some"] - r
        printf "          %d refusals: reads %d and %d;%s\n", r, one[d, "some"], two[d, "some"], rest[d, "some"]
        if (r > 0) printf "          diverted: %.2f reads for each refusal, %.2f %% of all reads, for %.1f ms\n", two[d, "some"] / r, 100 * two[d, "some"] / all, 1000 * two[d, "some"] / r / iops[d, "some"]
    }
}'
