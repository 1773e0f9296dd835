# A guest that boots Debian with systemd (QEMU, no KVM needed), to be sourced by the packages' tests. Needs qemu-system-x86_64, mmdebstrap and cpio.
source tests/guest.sh

# Boots the packages $3 (comma-separated) with the script $4 and the files that follow in /srv, in folder $1 with $2 MiB of memory, and words $words for the
# kernel. Succeeds if the script said `PACKAGE-TEST: all passed`; shows all that the guest said otherwise.
systemd_guest() {
    local work=$1 memory=$2 include=$3 script=$4 root serial=$1/serial.log
    shift 4
    mkdir -p "$work"
    # The kernel is the other guests'.
    guest_image "$work/kernel" : >/dev/null
    if [ ! -f "$work/root.tar" ]; then
        mmdebstrap --quiet --variant=minbase --include="systemd,systemd-sysv,$include" bookworm "$work/root.partial.tar"
        mv "$work/root.partial.tar" "$work/root.tar"
    fi
    root=$(mktemp -d)
    tar -C "$root" -xf "$work/root.tar" --exclude './dev/*'
    rm -rf "$root"/usr/share/{doc,locale,man}/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
    cp "$script" "$root/srv/test.sh"
    cp "$@" "$root/srv/"
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
    rm -rf "$root"

    : >"$serial"
    timeout 900 qemu-system-x86_64 -accel tcg -cpu max -smp 2 -m "$memory" -nographic -no-reboot -nodefaults -serial "file:$serial" \
        -kernel "$work/kernel/vmlinuz" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 systemd.show_status=0 systemd.log_level=warning rdinit=/init ${words:-}" || true
    if grep -aq '^PACKAGE-TEST: all passed' "$serial"; then
        grep -a '^PACKAGE-TEST' "$serial"
    else
        cat "$serial"
        echo "the package test failed: $serial"
        return 1
    fi
}
