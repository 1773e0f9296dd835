# Run by packaging/test.sh inside the guest.
trap 'echo "PACKAGE-TEST failed at line $LINENO: $BASH_COMMAND"; systemctl status --no-pager plimsoll; journalctl --no-pager -u plimsoll -n 40; exit 1' ERR
set -eE
# A command that must fail: `!` alone would let its success pass.
fails() { if "$@"; then echo "PACKAGE-TEST: should have failed: $*"; return 1; fi; }
passed() { echo "PACKAGE-TEST: $*"; }
config=/etc/plimsoll/plimsoll.toml
uri() { echo "nbd+unix:///$1?socket=/run/plimsoll/nbd.sock"; }

dpkg -i /srv/old.deb
[ "$(systemctl is-active plimsoll)" = active ]
[ "$(systemctl is-enabled plimsoll)" = enabled ]
[ "$(ps -o user= -C plimsoll 2>/dev/null || stat -c %U "/proc/$(systemctl show -p MainPID --value plimsoll)")" = plimsoll ]
plimsoll status >/dev/null
[ "$(stat -c '%U %a' $config)" = "root 640" ]
[ "$(stat -c %a /run/plimsoll/control.sock)" = 600 ]
systemctl show -p StatusText --value plimsoll | grep -q serving
exports() { nbdinfo --list "nbd+unix:///?socket=/run/plimsoll/nbd.sock" 2>/dev/null | grep -q 'export='; }
fails exports
passed "installed and started: as user plimsoll, nothing granted"

cp $config /srv/good.toml
sed -i 's/^\[\[tenant\]\]/&\ndedline = "5ms"/' $config
fails systemctl reload plimsoll
[ "$(systemctl is-active plimsoll)" = active ]
cp /srv/good.toml $config
cat >>$config <<'TOML'
[[volume]]
name = "data"
pool = "main"
size = "64MiB"
tenant = "default"
[[grant]]
peer = "local"
volumes = ["*"]
TOML
systemctl reload plimsoll
nbdinfo --size "$(uri data)" | grep -q 67108864
journalctl -u plimsoll -o cat | grep -q 'unknown field `dedline`' || plimsoll events | grep -q reload
passed "reloaded: an error changes nothing and fails the reload; volumes and grants apply"

sed -i 's/^\[\[tenant\]\]/[[pool]]\nname = "cached"\ndevice = { file = "\/var\/lib\/plimsoll\/slow.img", size = "256MiB" }\n[pool.cache]\nfile = "\/var\/lib\/plimsoll\/fast.img"\ndevice_size = "128MiB"\nmode = "back"\nwatermark_percent = 90\n\n&/' $config
cat >>$config <<'TOML'
[[volume]]
name = "cached"
pool = "cached"
size = "64MiB"
tenant = "default"
TOML
plimsoll check $config
systemctl restart plimsoll
dd if=/dev/urandom of=/srv/written bs=1M count=16 status=none
nbdcopy --flush /srv/written "$(uri cached)"
dirty() { plimsoll cache status cached --json | tr -d ' ,"' | sed -n 's/^dirty_extents://p' | head -1; }
[ "$(dirty)" -gt 0 ]
passed "dirty extents before the upgrade: $(dirty)"

dpkg -i /srv/new.deb
[ "$(dpkg-query -W -f '${Version}' plimsoll)" = "$(dpkg-deb -f /srv/new.deb Version)" ]
[ "$(systemctl is-active plimsoll)" = active ]
grep -q 'name = "cached"' $config
nbdcopy "$(uri cached)" - | head -c 16777216 | cmp - /srv/written
passed "upgraded: restarted, its configuration kept, all data there"

fails dpkg -i /srv/old.deb 2>/srv/said
grep -q 'refusing to downgrade from .* to ' /srv/said
[ "$(systemctl is-active plimsoll)" = active ]
[ "$(dpkg-query -W -f '${Version}' plimsoll)" = "$(dpkg-deb -f /srv/new.deb Version)" ]
passed "a downgrade is refused by name, and nothing is changed"

kill -9 "$(systemctl show -p MainPID --value plimsoll)"
for _ in $(seq 100); do [ "$(systemctl is-active plimsoll)" = active ] && plimsoll status >/dev/null 2>&1 && break; sleep 0.3; done
nbdcopy "$(uri cached)" - | head -c 16777216 | cmp - /srv/written
passed "killed: started again by systemd, all data there"

plimsoll drain
for _ in $(seq 100); do [ "$(systemctl is-active plimsoll)" = inactive ] && break; sleep 0.3; done
[ "$(systemctl show -p Result --value plimsoll)" = success ]
systemctl start plimsoll
systemctl stop plimsoll
[ "$(systemctl show -p Result --value plimsoll)" = success ]
passed "drained, started, stopped in order"

systemctl start plimsoll
dpkg -r plimsoll
fails systemctl is-active --quiet plimsoll
[ -f $config ] && [ -f /var/lib/plimsoll/main.img ]
dpkg -P plimsoll
[ ! -e $config ] && [ -f /var/lib/plimsoll/main.img ]
passed "removed and purged: volumes are left"
passed "all passed"
