#!/bin/bash
# PostgreSQL in an emulated Linux guest (no KVM needed), reading and writing on ext4 over one NVMe/TCP path that refuses late reads: no
# error reaches it, and the node counts the promise. Takes five minutes. Usage: tests/guest_nvme_postgres.sh path/to/plimsoll
set -euo pipefail
. "$(dirname "$0")/guest.sh"
plimsoll=$(realpath "$1")
guest_begin target/guest-postgres

# The kernel and its modules are the other guests'; the rest is Debian with a server.
guest_image "$cache" : "virtio_net nvme_tcp libcrc32c crc32c_generic crc32c-intel ext4"
[ -f "$cache/root.tar" ] || mmdebstrap --quiet --variant=minbase --include=postgresql,busybox-static,e2fsprogs bookworm "$cache/root.tar"
root=$work/root
mkdir "$root"
tar -C "$root" -xf "$cache/root.tar" --exclude './dev/*'
rm -rf "$root"/usr/share/{doc,locale,man}/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/usr/lib/llvm* "$root"/usr/lib/*/libLLVM*
mkdir "$work/small"
(cd "$work/small" && gzip -dc "$cache/initrd" | cpio -i --quiet)
cp "$work"/small/*.ko "$work/small/modules" "$root/"
cat >"$root/init" <<'INIT'
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
while read -r m; do busybox insmod /$m; done </modules
busybox ifconfig lo 127.0.0.1 up
for i in $(seq 100); do busybox ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up 2>/dev/null && break; sleep 0.1; done
busybox route add default gw 10.0.2.2
word() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1=//p"; }
end() { [ "$1" = 0 ] && echo GUEST-PASSED || { echo "GUEST-FAILED: $2"; tail -n 20 /out; }; busybox poweroff -f; }
run() { "$@" >/out 2>&1 || end 1 "$*"; }
id=11111111-2222-3333-4444-555555555555
echo "transport=tcp,traddr=10.0.2.2,trsvcid=$(word port),nqn=nqn.2026-11.plimsoll:pg,hostnqn=nqn.2014-08.org.nvmexpress:uuid:$id,hostid=$id,nr_io_queues=2" >/dev/nvme-fabrics || end 1 connect
for i in $(seq 100); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done
run mkfs.ext4 -q /dev/nvme0n1
mkdir -p /mnt && run mount /dev/nvme0n1 /mnt
mkdir /mnt/pg && chown postgres /mnt/pg
bin=$(echo /usr/lib/postgresql/*/bin)
pg() { su postgres -s /bin/bash -c "cd /tmp; PATH=$bin:\$PATH; $1"; }
run pg "initdb -D /mnt/pg --no-sync"
echo "GUEST database made"
# Small caches, so that reads go to the device.
run pg "pg_ctl -D /mnt/pg -w -t 300 -l /tmp/log -o '-c shared_buffers=1MB -c jit=off -c unix_socket_directories=/tmp -c listen_addresses=' start"
run pg "pgbench -h /tmp -i -q -s 4 postgres"
echo "GUEST tables made"
run pg "pg_ctl -D /mnt/pg -w -t 300 stop"
run umount /mnt
run mount /dev/nvme0n1 /mnt
run pg "pg_ctl -D /mnt/pg -w -t 300 -l /tmp/log -o '-c shared_buffers=1MB -c jit=off -c unix_socket_directories=/tmp -c listen_addresses=' start"
for mode in tpcb-like select-only; do
    echo 3 >/proc/sys/vm/drop_caches
    run pg "pgbench -h /tmp -n -c 4 -j 2 -T 25 -b $mode --random-seed=7 postgres"
    grep -E 'transactions actually|failed|latency average|^tps' /out | sed "s/^/GUEST $mode: /"
    grep -q 'number of failed transactions: 0' /out || end 1 "$mode had failed transactions"
done
pg "psql -h /tmp -Atc 'select count(*), sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts' postgres" >/sum 2>&1
echo "GUEST accounts: $(cat /sum)"
[ "$(cat /sum)" = "400000|t" ] || end 1 "the accounts don't add up"
run pg "pg_ctl -D /mnt/pg -w -t 300 stop"
grep -E 'ERROR|PANIC|FATAL' /tmp/log | grep -v 'starting up' | head -n 5 | sed 's/^/GUEST log: /'
grep -qE 'could not (read|write)|Input/output' /tmp/log && end 1 "the server saw errors"
run umount /mnt
run e2fsck -fn /dev/nvme0n1
dmesg | grep -E 'I/O error, dev nvme[0-9]+n[0-9]+,|Buffer I/O error|nvme.*(timeout|reset)' >/out && end 1 "the kernel saw errors"
end 0
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"

mkdir "$work/a"
cat >"$work/a/node.toml" <<CONFIG
[listen]
unix = "nbd.sock"
nvme_tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "disk.img", size = "1GiB", model = "cheetah-15k5" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "pg"
pool = "p"
size = "512MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
[[subsystem]]
nqn = "nqn.2026-11.plimsoll:pg"
export = "pg?deadline=8ms&busy=error"
CONFIG
(cd "$work/a" && exec "$plimsoll" serve --config node.toml) >"$work/a/log" 2>&1 &
pids+=($!)
node_serves "$work/a/log"
port=$("$plimsoll" status --json --control "$work/a/control.sock" | grep -o '"nvme_tcp": *"[^"]*"' | grep -o '[0-9]*"$' | tr -d '"')
mv "$work/initrd" "$cache/postgres-initrd"
timeout 1500 qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m 3072 -nographic -no-reboot -nodefaults -serial "file:$work/serial" \
    -kernel "$cache/vmlinuz" -initrd "$cache/postgres-initrd" -append "console=ttyS0 quiet panic=-1 rdinit=/init port=$port" \
    -netdev user,id=n -device virtio-net-pci,netdev=n || true
grep -a GUEST "$work/serial" | tr -d '\r' || cat "$work/serial"
"$plimsoll" volume show pg --control "$work/a/control.sock"
refused=$("$plimsoll" volume show pg --json --control "$work/a/control.sock" | grep -o '"refused": *[0-9]*' | head -1 | grep -o '[0-9]*$')
grep -aq GUEST-PASSED "$work/serial"
[ "$refused" -gt 0 ] || { echo "nothing was refused, so nothing was tested"; exit 1; }
echo "passed; refused reads: $refused"
