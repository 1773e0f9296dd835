# Emulated Linux guests (no KVM needed) for tests, to be sourced. Needs qemu-system-x86_64, busybox-static, cpio, zstd, kmod; fetches
# Debian's cloud kernel with apt-get download, once.

# A test's folders: `$cache`, the absolute name of $1, which is kept; `$work`, which goes at the end with the processes whose ids are in `$pids`.
guest_begin() {
    mkdir -p "$1"
    cache=$(realpath "$1")
    work=$(mktemp -d)
    pids=()
    trap guest_end EXIT
}
guest_end() {
    for p in "${pids[@]}"; do
        kill -9 "$p" 2>/dev/null || true
        wait "$p" 2>/dev/null || true
    done
    ! mountpoint -q "$work/mnt" || umount "$work/mnt"
    rm -rf "$work"
}

# A kernel and an initrd in folder $1 whose guest runs the shell script $2, when /dev/vda is there if it has virtio_blk. $3: modules
# beside virtio_pci, by default virtio_blk; $4: programs of this host. The script has `word NAME`, a word of the kernel's command line, and
# `network`, which sets up loopback and QEMU's own network.
guest_image() {
    local cache=$1 script=$2 modules=${3:-virtio_blk} programs=${4:-} kernel root version name
    mkdir -p "$cache"
    kernel="$cache/kernel"
    if [ ! -f "$cache/vmlinuz" ]; then
        name=$(apt-cache depends linux-image-6.12-cloud-amd64 | awk '/Depends: linux-image/{print $2; exit}')
        (cd "$cache" && apt-get download -qq "$name" && rm -rf kernel && dpkg-deb -x linux-image-*.deb kernel && rm -f linux-image-*.deb)
        [ -d "$kernel/lib/modules" ] || ln -s usr/lib "$kernel/lib"
        cp "$kernel"/boot/vmlinuz-* "$cache/vmlinuz"
    fi
    version=$(ls "$kernel/lib/modules")
    root=$(mktemp -d)
    mkdir -p "$root"/{bin,proc,sys,dev}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for p in $programs; do
        cp "$(command -v "$p")" "$root/bin/"
        ldd "$(command -v "$p")" | grep -o '/[^ ]*' | while read -r library; do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
    depmod -b "$kernel" "$version"
    for m in virtio_pci $modules; do
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
[ ! -d /sys/module/virtio_blk ] || for i in $(seq 500); do [ -b /dev/vda ] && break; usleep 10000; done
word() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1=//p"; }
network() {
    ifconfig lo 127.0.0.1 up
    for i in $(seq 100); do ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up 2>/dev/null && break; usleep 100000; done
    route add default gw 10.0.2.2
}
echo GUEST-READY
. /script
poweroff -f
INIT
    echo "$script" >"$root/script"
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$cache/initrd"
    rm -rf "$root"
}

# Starts a guest: folder of its image, its console's file, MiB of memory, words for the kernel, then drives.
guest_start() {
    local cache=$1 serial=$2 memory=$3 words=$4
    shift 4
    qemu-system-x86_64 -accel tcg -cpu max -m "$memory" -nographic -no-reboot -nodefaults -serial "file:$serial" \
        -kernel "$cache/vmlinuz" -initrd "$cache/initrd" -append "console=ttyS0 quiet panic=-1 $words" "$@" &
}

# Waits until a node that logs to $1 serves.
node_serves() {
    for _ in $(seq 300); do grep -q serves "$1" && return; sleep 0.1; done
    cat "$1"
    return 1
}
