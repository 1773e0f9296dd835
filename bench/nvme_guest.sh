#!/bin/bash
# RocksDB on ext4 over two nodes, and fio on the device, read by an emulated Linux guest (no KVM needed) whose kernel chooses the node: with
# refusals, without refusals under each multipath policy, and over NBD from one node by the kernel, and from both by Plimsoll's client. Each
# node is a modelled disk in real time with noise of its own: the two have it in turn. Rounds alternate; prints the median over rounds of each
# percentile, with the least and the greatest.
# miss_percent: of the nodes' pools, if not the default. 0 accepts a read by its forecast alone.
# WHY=1 adds three loads by fio between RocksDB's and its own: 4 threads that read RocksDB's files; 4 in flight on the device's first 32 MiB; and 4 in
# flight of RocksDB's length and alignment.
# Usage: bench/nvme_guest.sh path/to/plimsoll path/to/tails [rounds [seconds [deadline_ms [miss_percent]]]]. Takes about rounds x 11 x (seconds + 3),
# with WHY=1 26 instead of 11.
set -euo pipefail
. "$(dirname "$0")/../tests/guest.sh"
plimsoll=$(realpath "$1")
tails=$(realpath "$2")
rounds=${3:-3}
seconds=${4:-15}
deadline_ms=${5:-20}
deadline=${deadline_ms}ms
admission=${6:+miss_percent = $6}
guest_begin target/guest-nvme-bench
# Without debugging information: the guest unpacks it into its memory.
strip -o "$work/tails" "$tails"

guest_image "$cache" '
network
subsystem() { grep -l "plimsoll:$1\$" /sys/class/nvme-subsystem/*/subsysnqn | xargs dirname; }
connect() { # subsystem, port
    id=11111111-2222-3333-4444-555555555555
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$2,nqn=nqn.2026-11.plimsoll:$1,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id,hostid=$id,nr_io_queues=2" >/dev/nvme-fabrics \
        || echo "GUEST-FAILED connect $1 $2: $(dmesg | tail -n 2 | xargs)"
}
disk() {
    for i in $(seq 200); do
        for d in $(subsystem $1)/nvme*n*; do
            d=$(basename $d)
            case $d in *c*) ;; *) [ -b /dev/$d ] && echo $d && return ;; esac
        done
        usleep 50000
    done
}
joined() { # ends when both paths are there
    for i in $(seq 200); do [ $(ls -d $(subsystem $1)/nvme*/nvme*c*n* | wc -l) = 2 ] && return; usleep 50000; done
    echo "GUEST-FAILED $1 has other than two paths: $(dmesg | grep nvme | tail -n 3 | xargs)"
}
paths() { # reads of each path so far
    for p in $(subsystem $1)/nvme*/nvme*c*n*; do awk "{print \$1}" $p/stat; done | xargs
}
counts() { # of each node so far: reads done in time, too late, refused at once, and late as nobody else could serve them; refused after they had
    # been accepted; spared a refusal as they came back, as they overlapped a refused one, and as no more refusals were remembered
    for port in $(word httpa) $(word httpb); do
        wget -q -O - http://10.0.2.2:$port/v1/volumes/data | tr ",{" "\n\n" | awk -F: "/\"deadlines_met\"/{a=\$2} /\"deadlines_missed\"/{b=\$2} /\"busy_refused\"/{c=\$2} /\"deadlines_waited\"/{d=\$2} /\"busy_revoked\"/{e=\$2} /\"again\"/{f=\$2} /\"overlap\"/{g=\$2} /\"too_many\"/{h=\$2} /\"stranger\"/{i=\$2} END{print a+0, b+0, c+0, d+0, e+0, f+0, g+0, h+i}"
    done | xargs
}
begin() { # [subsystem]: before a load
    reads="0 0"; [ -z "$1" ] || reads=$(paths $1)
    before=$(counts)
}
end() { # name, [subsystem]: after it
    after="0 0"; [ -z "$2" ] || after=$(paths $2)
    echo "GUEST-PATHS $1 reads $reads to $after counts $before to $(counts)"
}
fio_reads() { # name, round, options of fio
    name_=$1; round_=$2; shift 2
    fio --name=r --readonly --rw=randread --direct=1 --time_based --runtime=$(word seconds) --randseed=$round_ --percentile_list=50:95:99:99.9 \
        --group_reporting --output-format=terse --terse-version=3 "$@" >/out 2>/err || echo "GUEST-FAILED $name_: $(tail -n 2 /err | xargs)"
    [ "$(cut -d";" -f5 /out)" = 0 ] || echo "GUEST-FAILED $name_: error $(cut -d";" -f5 /out)"
    p() { cut -d";" -f$1 /out | cut -d"=" -f2; }
    echo "GUEST-RESULT $name_ ops $(p 8) P50: $(p 18) P95: $(p 19) P99: $(p 20) P99.9: $(p 21) $(grep -c . /err) lines of errors"
}
measure() { # name, device, round, [subsystem]
    mount -t ext4 -o ro,noload /dev/$2 /mnt 2>/err || { echo "GUEST-FAILED mount $1: $(cat /err) $(dmesg | tail -n 2)"; return; }
    echo 3 >/proc/sys/vm/drop_caches
    begin $4
    db_bench --benchmarks=readrandom --use_existing_db=1 --readonly=1 --db=/mnt/db --num=$(word keys) --value_size=400 --compression_type=none \
        --use_direct_reads=1 --cache_size=0 --threads=4 --duration=$(word seconds) --histogram=1 --seed=$3 >/out 2>/err || echo "GUEST-FAILED db_bench $1: $(tail -n 2 /err | xargs)"
    # db_bench prints no p95. It is in the histogram: within the bucket in which 95 % are reached, as db_bench does for its percentiles.
    p95=$(awk "/^[[(] /{low=\$2+0; high=\$3+0; sum=\$7+0; if (!found && sum>=95) {found=low+(high-low)*(95-before)/(sum-before)} before=sum} END{print found}" /out)
    echo "GUEST-RESULT $1 P95: $p95 $(awk "/^readrandom/{print \"ops\", \$5} /^Percentiles/{print \$2,\$3,\$4,\$5,\$6,\$7,\$8,\$9,\$10,\$11}" /out | xargs) $(grep -c . /err) lines of errors"
    end $1 $4
    if [ -n "$(word why)" ]; then
        begin $4
        fio_reads files-$1 $3 --filename=$(ls /mnt/db/*.sst | xargs | tr " " ":") --bs=4k --ioengine=psync --thread --numjobs=4
        end files-$1 $4
    fi
    umount /mnt
    if [ -n "$(word why)" ]; then
        begin $4
        fio_reads near-$1 $3 --filename=/dev/$2 --bs=4k --size=32M --ioengine=libaio --iodepth=4
        end near-$1 $4
        begin $4
        fio_reads odd-$1 $3 --filename=/dev/$2 --bs=4608 --blockalign=512 --ioengine=libaio --iodepth=4
        end odd-$1 $4
    fi
    begin $4
    fio_reads fio-$1 $3 --filename=/dev/$2 --bs=4k --ioengine=libaio --iodepth=4
    end fio-$1 $4
}
mkdir -p /mnt /tmp
for round in $(seq $(word rounds)); do
    for mode in refuse plain-numa plain-round-robin plain-queue-depth; do
        name=${mode%%-*}
        connect $name $(word a); connect $name $(word b)
        d=$(disk $name)
        joined $name
        case $mode in plain-*) policy=${mode#plain-} ;; *) policy=numa ;; esac
        echo $policy >$(subsystem $name)/iopolicy
        measure $mode $d $round $name
        for c in $(ls -d $(subsystem $name)/nvme* | grep -v "n[0-9]*$"); do echo 1 >$c/delete_controller; done
        while [ -n "$(grep -l "plimsoll:$name\$" /sys/class/nvme-subsystem/*/subsysnqn 2>/dev/null)" ]; do usleep 20000; done
    done
    nbd-client -N data 10.0.2.2 $(word nbd) /dev/nbd0 -readonly >/err 2>&1 || echo "GUEST-FAILED nbd-client $(cat /err)"
    measure nbd nbd0 $round
    nbd-client -d /dev/nbd0 >/dev/null 2>&1
    begin
    tails $(word seconds) 4 128 $(word deadline) nbd://10.0.2.2:$(word nbd)/data nbd://10.0.2.2:$(word nbdb)/data >/out 2>/err \
        || echo "GUEST-FAILED the client: $(tail -n 2 /err | xargs)"
    echo "GUEST-RESULT reads-client $(cat /out) $(grep -c . /err) lines of errors"
    end reads-client
done
dmesg | grep -E "I/O error, dev nvme[0-9]+n[0-9]+,|Buffer I/O error on dev nvme[0-9]+n" | head -n 3 | sed "s/^/GUEST-FAILED /"
echo GUEST-DONE
' "virtio_net nvme_tcp libcrc32c crc32c_generic crc32c-intel ext4 nbd" "db_bench nbd-client fio $work/tails"

# The data base, on one node; the other resyncs.
keys=100000
truncate -s 128M "$work/raw"
mkfs.ext4 -q -F "$work/raw"
mkdir "$work/mnt"
mount -o loop "$work/raw" "$work/mnt"
db_bench --benchmarks=fillrandom,compact --db="$work/mnt/db" --num=$keys --value_size=400 --compression_type=none --seed=1 --write_buffer_size=4000000 >/dev/null 2>&1
umount "$work/mnt"

config() { # device, read_only, subsystems
    cat <<CONFIG
[listen]
unix = "nbd.sock"
tcp = "127.0.0.1:0"
nvme_tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = $1
$admission
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "data"
pool = "p"
size = "128MiB"
tenant = "t"
read_only = $2
[[volume]]
name = "noise"
pool = "p"
size = "256MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
$3
CONFIG
}
start_node() { # which, configuration
    mkdir -p "$work/$1"
    echo "$2" >"$work/$1/node.toml"
    (cd "$work/$1" && exec "$plimsoll" serve --config node.toml) >"$work/$1/log" 2>&1 &
    nodes[$1]=$!
    pids+=($!)
    node_serves "$work/$1/log"
}
declare -A nodes
for n in a b; do start_node $n "$(config '{ file = "disk.img", size = "512MiB" }' false "")"; done
uri() { echo "nbd+unix:///data?socket=$work/$1/nbd.sock"; }
nbdcopy "$work/raw" "$(uri a)"
"$plimsoll" volume resync data --replica "$(uri b)" --from "$(uri a)" --control "$work/b/control.sock" --yes >"$work/resync" 2>&1 || { cat "$work/resync"; exit 1; }
# Replicas that haven't seen the same changes aren't one device's paths to Linux, nor would the client read both.
changes() { "$plimsoll" volume show data --control "$work/$1/control.sock" | awk '$1 == "changes" {print $2}'; }
[ -n "$(changes a)" ] && [ "$(changes a)" = "$(changes b)" ]
for n in a b; do
    kill "${nodes[$n]}"
    wait "${nodes[$n]}"
done
path=1
for n in a b; do
    names="[[subsystem]]
nqn = \"nqn.2026-11.plimsoll:refuse\"
export = \"data?deadline=$deadline&busy=error&replica=read\"
path = $path
[[subsystem]]
nqn = \"nqn.2026-11.plimsoll:plain\"
export = \"data?replica=read\"
path = $path"
    start_node $n "$(config '{ file = "disk.img", size = "512MiB", model = "cheetah-15k5" }' true "$names")"
    path=$((path + 1))
done
port() { "$plimsoll" status --json --control "$work/$1/control.sock" | grep -o "\"$2\": *\"[^\"]*:[^\"]*\"" | grep -o '[0-9]*"$' | tr -d '"'; }

# Noise: three seconds on one node, then on the other.
(
    while :; do
        for n in a b; do
            fio --name=n --ioengine=nbd --uri="nbd+unix:///noise?socket=$work/$n/nbd.sock" --rw=randrw --bs=64k --iodepth=8 --time_based \
                --runtime=3 --size=256M --randrepeat=0 --output=/dev/null >/dev/null 2>&1 || exit
        done
    done
) &
pids+=($!)
guest_start "$cache" "$work/serial" 768 "a=$(port a nvme_tcp) b=$(port b nvme_tcp) nbd=$(port a nbd_tcp) nbdb=$(port b nbd_tcp) httpa=$(port a control_http) httpb=$(port b control_http) deadline=$deadline_ms keys=$keys seconds=$seconds rounds=$rounds why=${WHY:-}" \
    -netdev user,id=n -device virtio-net-pci,netdev=n
qemu=$!
pids+=($qemu)
wait $qemu || true
grep -a "GUEST-FAILED" "$work/serial" && exit 1
grep -aq GUEST-DONE "$work/serial"
echo "db_bench readrandom with 4 threads, fio and the client with 4 reads in flight, $rounds rounds of $seconds s, deadline $deadline${6:+, miss_percent $6}, ms; a guest without hardware acceleration, modelled disks"
grep -a GUEST-RESULT "$work/serial" | tr -d '\r' | gawk '
{ name = $2; for (i = 3; i < NF; i++) { k = $i; sub(":", "", k); if (k ~ /^(ops|P50|P95|P99|P99.9)$/) v[name, k] = v[name, k] " " $(i + 1) } names[name] = 1 }
END { for (name in names) { printf "%-20s", name; split("ops P50 P95 P99 P99.9", keys, " "); for (j = 1; j <= 5; j++) { k = keys[j]; n = split(v[name, k], a, " "); asort(a);
    scale = k == "ops" ? 1 : 1000; printf "  %s %.2f (%.2f to %.2f)", k, a[int((n + 1) / 2)] / scale, a[1] / scale, a[n] / scale } print "" } }' || cat "$work/serial"
echo "reads with a deadline at each node, all rounds: done in time, too late though accepted, refused at once, late as nobody else could serve them; refused after"
echo "they had been accepted; spared a refusal as they came back, as they overlapped a refused one, as no more refusals were remembered"
# GUEST-PATHS name reads 2 numbers to 2 counts 16 to 16
grep -a GUEST-PATHS "$work/serial" | tr -d '\r' | gawk '
{ names[$2] = 1; for (k = 0; k < 2; k++) r[$2, k] += $(7 + k) - $(4 + k); for (k = 0; k < 16; k++) c[$2, k] += $(27 + k) - $(10 + k) }
END { for (name in names) { printf "%-20s reads of each path %d and %d", name, r[name, 0], r[name, 1]
    for (k = 0; k < 16; k++) printf "%s %d", k == 0 ? "; first node" : k == 8 ? "; second" : "", c[name, k]; print "" } }'
for n in a b; do
    echo "node $n, all loads:"
    "$plimsoll" volume show data --control "$work/$n/control.sock" | grep -A1 spared || true
done
