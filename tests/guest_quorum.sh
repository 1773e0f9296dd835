#!/bin/bash
# A Linux guest (emulated: no KVM needed) on QEMU's quorum over three nodes: it writes and reads back with direct I/O while the first
# node is killed, comes back with old data, and is resynced. Takes about a minute. Usage: tests/guest_quorum.sh path/to/plimsoll
# Needs qemu-system-x86_64, busybox-static, cpio, zstd, kmod; fetches Debian's cloud kernel with apt-get download, once.
set -euo pipefail
plimsoll=$(realpath "$1")
cache=${2:-target/guest}
mkdir -p "$cache"
cache=$(realpath "$cache")
work=$(mktemp -d)
pids=()
finish() {
    for p in "${pids[@]}"; do kill -9 "$p" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT

if [ ! -f "$cache/initrd" ]; then
    name=$(apt-cache depends linux-image-6.12-cloud-amd64 | awk '/Depends: linux-image/{print $2; exit}')
    (cd "$cache" && apt-get download -qq "$name" && rm -rf kernel && dpkg-deb -x linux-image-*.deb kernel && rm -f linux-image-*.deb)
    kernel="$cache/kernel"
    [ -d "$kernel/lib/modules" ] || ln -s usr/lib "$kernel/lib"
    version=$(ls "$kernel/lib/modules")
    cp "$kernel"/boot/vmlinuz-* "$cache/vmlinuz"
    root="$work/root"
    mkdir -p "$root"/{bin,proc,sys,dev}
    cp "$(command -v busybox)" "$root/bin/busybox"
    depmod -b "$kernel" "$version"
    for m in virtio_pci virtio_blk; do
        modprobe -d "$kernel" -S "$version" --show-depends $m 2>/dev/null | awk '/^insmod/{print $2}'
    done | awk '!seen[$0]++' | while read -r f; do
        n=$(basename "$f")
        case $n in *.xz) xz -dc "$f" >"$root/${n%.xz}"; echo "${n%.xz}" ;; *) cp "$f" "$root/$n"; echo "$n" ;; esac
    done >"$root/modules"
    cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
while read -r m; do insmod /$m; done </modules
for i in $(seq 500); do [ -b /dev/vda ] && break; usleep 10000; done
echo GUEST-READY
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
poweroff -f
INIT
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$cache/initrd"
fi

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
    for _ in $(seq 300); do grep -q serves "$work/$1/log" && return; sleep 0.1; done
    cat "$work/$1/log"; exit 1
}
declare -A nodes
for i in 0 1 2; do start_node $i; done

drives=()
for i in 0 1 2; do
    drives+=(-blockdev "driver=nbd,node-name=n$i,server.type=unix,server.path=$work/$i/nbd.sock,export=vol?deadline=50ms&replica=write")
done
qemu-system-x86_64 -accel tcg -cpu max -m 512 -nographic -no-reboot -nodefaults -serial "file:$work/serial" \
    -kernel "$cache/vmlinuz" -initrd "$cache/initrd" -append "console=ttyS0 quiet panic=-1" "${drives[@]}" \
    -blockdev driver=quorum,node-name=q0,vote-threshold=1,read-pattern=fifo,children.0=n0,children.1=n1,children.2=n2 \
    -device virtio-blk-pci,drive=q0 &
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
