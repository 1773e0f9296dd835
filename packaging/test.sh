#!/bin/bash
# The packages' life in a guest that boots systemd (QEMU, no KVM needed): installed, started, reloaded, upgraded with dirty data in a
# write-back cache, a downgrade refused, stopped, removed, purged.
# usage: packaging/test.sh [--profile NAME]     (root; needs qemu-system-x86_64, mmdebstrap, cpio, lintian)
set -euo pipefail
cd "$(dirname "$0")/.."
profile=(--profile release)
[ "${1:-}" = --profile ] && profile=(--profile "$2")
work=target/package-guest
mkdir -p "$work"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# The program of both is the same: what differs is the package's version.
packaging/build.sh "${profile[@]}" --deb-version "$version-1" plimsoll
# cargo-deb keeps one version of a package in a folder.
cp "target/debian/plimsoll_$version-1_amd64.deb" "$work/old.deb"
packaging/build.sh "${profile[@]}" --deb-version "$version-2" plimsoll
lintian --fail-on error --suppress-tags-from-file packaging/lintian-suppressed "target/debian/plimsoll_$version-2_amd64.deb"

# Debian with systemd, as the guest's initial memory file system; the kernel is the other guests'.
source tests/guest.sh
guest_image "$work/kernel" : >/dev/null
if [ ! -f "$work/root.tar" ]; then
    mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,libnbd-bin,libgcc-s1 bookworm "$work/root.tar"
fi
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
tar -C "$root" -xf "$work/root.tar" --exclude './dev/*'
rm -rf "$root"/usr/share/{doc,locale,man}/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
cp "$work/old.deb" "$root/srv/old.deb"
cp "target/debian/plimsoll_$version-2_amd64.deb" "$root/srv/new.deb"
cp packaging/guest-test.sh "$root/srv/test.sh"
cat >"$root/etc/systemd/system/package-test.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /srv/test.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStopPost=/bin/systemctl --force --force poweroff
[Install]
WantedBy=default.target
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../package-test.service "$root/etc/systemd/system/default.target.wants/"
ln -sf /sbin/init "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initrd"

serial=$work/serial.log
: >"$serial"
timeout 900 qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m 3072 -nographic -no-reboot -nodefaults -serial "file:$serial" \
    -kernel "$work/kernel/vmlinuz" -initrd "$work/initrd" \
    -append "console=ttyS0 quiet panic=-1 systemd.show_status=0 systemd.log_level=warning rdinit=/init" || true
if grep -aq '^PACKAGE-TEST: all passed' "$serial"; then
    grep -a '^PACKAGE-TEST' "$serial"
else
    cat "$serial"
    echo "the package test failed: $serial"
    exit 1
fi
