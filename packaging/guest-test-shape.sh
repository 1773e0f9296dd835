# Run by packaging/test-shape.sh inside the guest.
trap 'echo "PACKAGE-TEST failed at line $LINENO: $BASH_COMMAND"; systemctl status --no-pager mariadb; journalctl --no-pager -u mariadb -n 40; dmesg | grep -i apparmor | tail -40; exit 1' ERR
set -eE
passed() { echo "PACKAGE-TEST: $*"; }
until_true() { for _ in $(seq 200); do "$@" && return 0; sleep 0.3; done; echo "PACKAGE-TEST: never: $*"; return 1; }
examples=/usr/share/doc/plimsoll-shape/examples
rules=/etc/apparmor.d/usr.sbin.mariadbd
segment=/run/plimsoll-shape/segment
load() { apparmor_parser -r $rules; systemctl restart mariadb; until_true mariadb -e 'SELECT 1' >/dev/null 2>&1; }
is_confined() { grep -q '^/usr/sbin/mariadbd (enforce)' "/proc/$(pidof mariadbd)/attr/current"; }
is_shaped() { grep -q "$segment" "/proc/$(pidof mariadbd)/maps"; }
of_ours() { dmesg | grep 'apparmor="DENIED"' | grep -E 'plimsoll|libplimsoll' || true; }

[ "$(cat /sys/module/apparmor/parameters/enabled)" = Y ]
dpkg -i /srv/plimsoll.deb /srv/plimsoll-shape.deb
# Debian's own profile of the server has no rules: these are a site's.
cat >$rules <<'RULES'
abi <abi/3.0>,
include <tunables/global>
/usr/sbin/mariadbd {
  include <abstractions/base>
  include <abstractions/nameservice>
  include <abstractions/mysql>
  include <abstractions/openssl>
  capability dac_override,
  capability setgid,
  capability setuid,
  capability sys_resource,
  network,
  signal,
  /usr/sbin/mariadbd mr,
  /etc/mysql/** r,
  /usr/share/mysql/** r,
  /usr/lib/mysql/plugin/ r,
  /usr/lib/mysql/plugin/*.so* mr,
  /var/lib/mysql/ r,
  /var/lib/mysql/** rwk,
  /var/log/mysql/** rw,
  /{,var/}run/mysqld/** rwk,
  /{,var/}run/systemd/notify w,
  /tmp/** rwk,
  /sys/** r,
  @{PROC}/** r,
  /dev/shm/** rw,
  include if exists <local/usr.sbin.mariadbd>
}
RULES
rm -f /etc/apparmor.d/local/usr.sbin.mariadbd
load
is_confined
passed "AppArmor confines the server"

mkdir -p /etc/systemd/system/mariadb.service.d
cp $examples/mariadb.conf /etc/systemd/system/mariadb.service.d/shape.conf
systemctl daemon-reload
load
is_confined
if is_shaped; then echo "PACKAGE-TEST: the server was shaped without the rules"; false; fi
[ -n "$(of_ours)" ]
passed "without the package's rules AppArmor keeps the server from the controller: $(of_ours | head -1 | grep -o 'operation="[^"]*".*name="[^"]*"')"

cat $examples/apparmor >>/etc/apparmor.d/local/usr.sbin.mariadbd
dmesg --clear
load
is_confined
is_shaped
mariadb -e 'CREATE DATABASE d; CREATE TABLE d.t (k INT PRIMARY KEY, v INT); INSERT INTO d.t VALUES (1, 1), (2, 2)'
mariadb -e "CREATE USER u@'127.0.0.1' IDENTIFIED BY 'u'; GRANT ALL ON d.* TO u@'127.0.0.1'"
# Clients over unix sockets are never held, so this one comes over TCP.
[ "$(mariadb -h 127.0.0.1 -u u -pu -N -e 'SELECT SUM(v) FROM d.t')" = 3 ]
plimsoll shape metrics --control $segment | grep 'user="u"'
denied=$(of_ours)
[ -z "$denied" ] || { echo "$denied"; false; }
passed "with the rules the server is confined and shaped, and nothing of it is denied"

systemctl stop mariadb
[ "$(systemctl show -p Result --value mariadb)" = success ]
passed "stopped in order"
passed "all passed"
