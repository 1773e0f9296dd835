#!/bin/bash
# A Linux guest (emulated: no KVM needed) as the NVMe/TCP host of two nodes: reads over two paths of which one refuses all or some,
# authentication, and verified reads and writes over one path that refuses. Takes about two minutes. Usage: tests/guest_nvme.sh path/to/plimsoll
set -euo pipefail
. "$(dirname "$0")/guest.sh"
plimsoll=$(realpath "$1")
guest_begin "${2:-target/guest-nvme}"

guest_image "$cache" '
network
bad=0
fail() { echo "GUEST-FAILED $*"; bad=1; }
connect() { # subsystem, port
    host=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$2,nqn=nqn.2026-11.plimsoll:$1,hostnqn=$host,hostid=11111111-2222-3333-4444-555555555555,nr_io_queues=2$3" >/dev/nvme-fabrics || fail "connect $1 $2"
}
disk() { # subsystem: the name of its device
    for i in $(seq 200); do
        for s in /sys/class/nvme-subsystem/*; do
            [ "$(cat $s/subsysnqn)" = "nqn.2026-11.plimsoll:$1" ] || continue
            for d in $s/nvme*n*; do
                n=$(basename $d)
                [ -b /dev/$n ] && echo $n && return
            done
        done
        usleep 50000
    done
}
paths() { # subsystem: reads of each path so far, of the one with the lowest number first
    for s in /sys/class/nvme-subsystem/*; do
        [ "$(cat $s/subsysnqn)" = "nqn.2026-11.plimsoll:$1" ] || continue
        for p in $s/nvme*/nvme*c*n*; do [ -e $p/stat ] && awk "{print \$1}" $p/stat; done
    done | xargs
}
joined() { # subsystem: ends when both paths are there
    for i in $(seq 200); do [ $(paths $1 | wc -w) = 2 ] && return; usleep 50000; done
    fail "$1 has other than two paths: $(dmesg | grep nvme | tail -n 3 | xargs)"
}
echo "GUEST multipath $(cat /sys/module/nvme_core/parameters/multipath)"
for subsystem in all some; do
    connect $subsystem $(word a)
    connect $subsystem $(word b)
    d=$(disk $subsystem)
    joined $subsystem
    for policy in numa round-robin queue-depth; do
        for s in /sys/class/nvme-subsystem/*; do
            [ "$(cat $s/subsysnqn)" = "nqn.2026-11.plimsoll:$subsystem" ] && echo $policy >$s/iopolicy
        done
        echo "GUEST-BEGIN $subsystem $policy"
        fio --name=r --filename=/dev/$d --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=4 --verify=crc32c --verify_fatal=1 \
            --time_based --runtime=8 --randseed=7 --output-format=terse --terse-version=3 >/out || fail "fio $subsystem $policy"
        awk -F";" -v s=$subsystem -v p=$policy "{split(\$30,x,\"=\"); print \"GUEST-READS\", s, p, \"iops\", \$8, \"error\", \$5, \"p99us\", x[2]}" /out
        echo "GUEST-END $subsystem $policy"
    done
    echo "GUEST-PATHS $subsystem $(paths $subsystem)"
    for reads in $(paths $subsystem); do [ $reads -gt 100 ] || fail "$subsystem: a path had $reads reads"; done
done
# Authentication: without a secret, with a wrong one, one-way, and mutual with each hash function.
refused() { # options
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$(word a),nqn=nqn.2026-11.plimsoll:rw,hostnqn=nqn.2026-11.plimsoll:guest,hostid=22222222-2222-3333-4444-555555555555,nr_io_queues=1$1" >/dev/nvme-fabrics 2>/dev/null && fail "connected with $1"
    true
}
proved() { # name, options
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$(word a),nqn=nqn.2026-11.plimsoll:secret,hostnqn=nqn.2026-11.plimsoll:guest,hostid=22222222-2222-3333-4444-555555555555,nr_io_queues=2,$2" >/dev/nvme-fabrics || fail "authentication $1"
    d=$(disk secret)
    dd if=/dev/$d of=/dev/null bs=64k count=16 iflag=direct 2>/dev/null || fail "read after authentication $1"
    echo "GUEST-PROVED $1"
    for c in /sys/class/nvme/nvme*; do
        [ "$(cat $c/subsysnqn)" = nqn.2026-11.plimsoll:secret ] && echo 1 >$c/delete_controller
    done
    while [ -n "$(grep -l plimsoll:secret /sys/class/nvme/nvme*/subsysnqn 2>/dev/null)" ]; do usleep 20000; done
}
refused ""
refused ",dhchap_secret=$(word wrong)"
proved one-way "dhchap_secret=$(word host)"
proved mutual "dhchap_secret=$(word host),dhchap_ctrl_secret=$(word node)"
refused ",dhchap_secret=$(word host),dhchap_ctrl_secret=$(word wrong)"
echo GUEST-END authentication
connect rw $(word a) ,hdr_digest,data_digest
d=$(disk rw)
echo GUEST-BEGIN rw one-path
fio --name=w --filename=/dev/$d --rw=randrw --bs=4k --direct=1 --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --size=8M \
    --fsync=64 --randseed=9 --output=/out || fail "fio rw"
fio --name=b --filename=/dev/$d --rw=write --bs=256k --direct=1 --ioengine=libaio --iodepth=4 --verify=crc32c --verify_fatal=1 --size=16M \
    --output=/out || fail "fio 256k"
dmesg -n 1 # what read-ahead is refused
blkdiscard -f /dev/$d 2>/dev/null || blkdiscard /dev/$d || fail blkdiscard
cmp -n 1048576 /dev/$d /dev/zero || fail "discarded blocks are not zeroes"
echo GUEST-END rw one-path
# Read-ahead that a path refuses (its device has a "c" in its name) is logged and read again: no error of the multipath device.
dmesg | grep -E "I/O error, dev nvme[0-9]+n[0-9]+,|Buffer I/O error|nvme.*(timeout|reset)" && fail "the kernel saw errors"
[ $bad = 0 ] && echo GUEST-PASSED
' "virtio_net nvme_tcp libcrc32c crc32c_generic crc32c-intel nvme_auth hmac sha256_generic sha512_generic dh_generic" fio

config() { # which, device, subsystems
    cat <<CONFIG
[listen]
unix = "nbd.sock"
nvme_tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = $2
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "data"
pool = "p"
size = "64MiB"
tenant = "t"
read_only = $4
[[volume]]
name = "rw"
pool = "p"
size = "32MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
$3
CONFIG
}
subsystem() { # name, export, path
    echo "[[subsystem]]"
    echo "nqn = \"nqn.2026-11.plimsoll:$1\""
    echo "export = \"$2\""
    [ -z "$3" ] || echo "path = $3"
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
# Secrets as `nvme gen-dhchap-key` makes them: the host's as it stands, the node's bound to its name by SHA-384, and another.
host_secret=DHHC-1:00:JTA7RlFcZ3J9iJOeqbS/ytXg6/YBDBciLThDTllkb3qr02o2:
node_secret=DHHC-1:02:SlVga3aBjJeirbjDztnk7/oFEBsmMTxHUl1oc36JlJ+qtcDL1uHs9wINGCMuOURPT+31Dw==:
wrong_secret=DHHC-1:00:b3qFkJumsbzH0t3o8/4JFB8qNUBLVmFsd4KNmKOuucQjDnYo:
nvme_host="[[nvme_host]]
nqn = \"nqn.2026-11.plimsoll:guest\"
secret_file = \"host.key\"
subsystem_secret_file = \"node.key\""
disk='{ file = "disk.img", size = "160MiB", model = "cheetah-15k5" }'
plain='{ file = "disk.img", size = "160MiB" }'

# The same data on both nodes, whose blocks fio can verify.
fio --name=fill --filename="$work/raw" --size=64M --rw=write --bs=4k --verify=crc32c --do_verify=0 --randseed=7 --output=/dev/null
for n in a b; do start_node $n "$(config $n "$plain" "" false)"; done
uri() { echo "nbd+unix:///data?socket=$work/$1/nbd.sock"; }
nbdcopy "$work/raw" "$(uri a)"
"$plimsoll" volume resync data --replica "$(uri b)" --from "$(uri a)" --control "$work/b/control.sock" --yes >"$work/resync" 2>&1 || { cat "$work/resync"; exit 1; }
for n in a b; do
    kill "${nodes[$n]}"
    wait "${nodes[$n]}"
done
(umask 077; echo $host_secret >"$work/a/host.key"; echo $node_secret >"$work/a/node.key")
start_node a "$(config a "$disk" "$(subsystem all 'data?deadline=1us&busy=error&replica=read' 1; subsystem some 'data?deadline=25ms&busy=error&replica=read' 1; subsystem rw 'rw?deadline=10ms&busy=error' ''; subsystem secret rw ''; echo "$nvme_host")" true)"
start_node b "$(config b "$plain" "$(subsystem all 'data?replica=read' 2; subsystem some 'data?replica=read' 2)" true)"
port() { "$plimsoll" status --json --control "$work/$1/control.sock" | grep -o '"nvme_tcp": *"[^"]*"' | grep -o '[0-9]*"$' | tr -d '"'; }
guest_start "$cache" "$work/serial" 768 "a=$(port a) b=$(port b) host=$host_secret node=$node_secret wrong=$wrong_secret" -netdev user,id=n -device virtio-net-pci,netdev=n
qemu=$!
pids+=($qemu)
wait $qemu || true
grep -a GUEST "$work/serial" || true
for n in a b; do
    echo "node $n:"
    "$plimsoll" volume show data --control "$work/$n/control.sock"
done
"$plimsoll" volume show rw --control "$work/a/control.sock"
grep -aq GUEST-PASSED "$work/serial"
echo "passed"
