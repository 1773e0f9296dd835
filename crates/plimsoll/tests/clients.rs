//! Clients that nobody here wrote: what they write, they read back, and what they are told is true.

mod common;
use common::{Server, config, ok, run};
use std::fs;
use std::path::Path;

fn serve(size: &str) -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(r#"{ file = "p.img", size = "1GiB" }"#, size));
    (dir, server)
}

/// 16 MiB of bytes that don't repeat, with a hole in the middle.
fn sample(dir: &Path) -> String {
    let path = dir.join("sample.raw");
    let mut rng = plimsoll_base::Rng::new(1, "sample");
    let mut bytes: Vec<u8> = (0..2 << 20).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes[4 << 20..8 << 20].fill(0);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    let (dir, server) = serve("16MiB");
    let (raw, uri) = (sample(dir.path()), server.uri("vol"));
    ok("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &raw, &uri]);
    let same = ok("qemu-img", &["compare", "-f", "raw", "-F", "raw", &raw, &uri]);
    assert!(same.contains("Images are identical"), "{same}");
    let map = ok("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(map.contains(r#""zero": true"#), "the hole is told: {map}");
    let copy = dir.path().join("copy.qcow2");
    let copy = copy.to_str().unwrap();
    ok("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, copy]);
    ok("qemu-img", &["check", copy]);
    assert!(ok("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &raw, copy]).contains("identical"));
    assert!(server.stop());
}

#[test]
fn qemu_io_with_any_alignment() {
    let (_dir, server) = serve("16MiB");
    let uri = server.uri("vol");
    let commands = [
        "write -P 1 0 1M",
        "write -P 2 1000 5000",
        "read -P 1 0 1000",
        "read -P 2 1000 5000",
        "read -P 1 6000 1000",
        "write -z 3000 100",
        "read -P 0 3000 100",
        "read -P 2 3100 100",
        "write -f -P 3 511 2",
        "read -P 3 511 2",
        "write -P 4 16777215 1",
        "read -P 4 16777215 1",
        "write -z -u 65536 65536",
        "read -P 0 65536 65536",
        "discard 131072 65536",
        "read -P 0 131072 65536",
        "flush",
        "write -P 5 777777 3000000",
        "read -P 5 777777 3000000",
    ];
    let mut args = vec!["-f", "raw"];
    for c in &commands {
        args.extend(["-c", c]);
    }
    args.push(&uri);
    let said = ok("qemu-io", &args);
    assert!(!said.contains("verification failed"), "{said}");
    let beyond = run("qemu-io", &["-f", "raw", "-c", "write 16777216 512", &uri]);
    assert!(!beyond.status.success(), "beyond the end");
}

#[test]
fn nbdcopy_with_four_connections_and_nbdinfo() {
    let (dir, server) = serve("16MiB");
    let (raw, uri) = (sample(dir.path()), server.uri("vol"));
    ok("nbdcopy", &["--connections=4", "--flush", &raw, &uri]);
    let back = dir.path().join("back.raw");
    ok("nbdcopy", &["--connections=4", &uri, back.to_str().unwrap()]);
    assert!(fs::read(&raw).unwrap() == fs::read(&back).unwrap(), "what came back differs");
    let info = ok("nbdinfo", &["--json", &uri]);
    for told in
        [r#""can_multi_conn": true"#, r#""can_fua": true"#, r#""can_fast_zero": true"#, r#""block_size_minimum": 1"#]
    {
        assert!(info.contains(told), "{told} is missing: {info}");
    }
    let list = ok("nbdinfo", &["--list", &format!("nbd+unix:///?socket={}", server.socket().display())]);
    assert!(list.contains("export=\"vol\""), "{list}");
    let map = ok("nbdinfo", &["--map", &uri]);
    assert!(map.contains("hole,zero"), "{map}");
    let unknown = run("nbdinfo", &[&server.uri("none")]);
    assert!(!unknown.status.success() && String::from_utf8_lossy(&unknown.stderr).contains("none"), "{unknown:?}");
}

/// Pools of each kind, by name: every place where data may lie that a backup must not miss.
const PLACES: [(&str, &str); 8] = [
    ("sparse", ""),
    ("memory", "memory = \"1MiB\""),
    ("through", "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"through\""),
    // Nothing is written back in time.
    ("back", "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\nwatermark_percent = 90"),
    (
        "back with NVRAM and memory",
        "memory = \"1MiB\"\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\nwatermark_percent = 90\nnvram = { file = \"nvram.img\", size = \"8MiB\" }",
    ),
    ("logs", "[pool.logs]\nlogged_write = \"64KiB\"\nidle = \"10s\""),
    (
        "back over logs",
        "[pool.logs]\nlogged_write = \"64KiB\"\nidle = \"10s\"\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\nwatermark_percent = 30",
    ),
    ("fenced", "fence = { slots = 2, slot = \"20ms\", hybrid = true, device = \"flash\" }"),
];

/// Backups: nbdcopy and qemu-img ask which ranges are zeroes and don't read those. What they copy equals what was written, wherever
/// the pool has it by then, also after a restart.
#[test]
fn backups_equal_what_was_written_wherever_it_is() {
    for (place, lines) in PLACES {
        let dir = tempfile::tempdir().unwrap();
        let config = config(r#"{ file = "p.img", size = "1GiB" }"#, "4MiB");
        let config = config.replace("[[tenant]]", &format!("{lines}\n[[tenant]]"));
        let server = Server::start(dir.path(), &config);
        let uri = server.uri("vol");
        // Old data everywhere, then new data with holes, in small writes so that logs take them.
        ok("qemu-io", &["-f", "raw", "-c", "write -P 7 0 4M", "-c", "flush", &uri]);
        let mut rng = plimsoll_base::Rng::new(2, "backup");
        let mut bytes: Vec<u8> = (0..4 << 17).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        bytes[1 << 20..2 << 20].fill(0);
        bytes[3_000_000..3_100_000].fill(0);
        let raw = dir.path().join("sample.raw");
        fs::write(&raw, &bytes).unwrap();
        ok("nbdcopy", &["--request-size=8192", "--flush", raw.to_str().unwrap(), &uri]);
        let check = |uri: &str, when: &str| {
            let (copy, converted) = (dir.path().join("copy.raw"), dir.path().join("converted.raw"));
            ok("nbdcopy", &[uri, copy.to_str().unwrap()]);
            assert!(fs::read(&copy).unwrap() == bytes, "{place}, {when}: nbdcopy's copy differs");
            ok("qemu-img", &["convert", "-f", "raw", "-O", "raw", uri, converted.to_str().unwrap()]);
            assert!(fs::read(&converted).unwrap() == bytes, "{place}, {when}: qemu-img's copy differs");
        };
        check(&uri, "at once");
        assert!(server.stop(), "{place}");
        let server = Server::start(dir.path(), &config);
        check(&server.uri("vol"), "after a restart");
        assert!(server.stop(), "{place}");
    }
}

/// libnbd's Python shell: flags, errors, and consistency over two connections.
#[test]
fn nbdsh_flags_errors_and_two_connections() {
    let (_dir, server) = serve("16MiB");
    let script = format!(
        r#"
uri = "{uri}"
a, b = nbd.NBD(), nbd.NBD()
a.add_meta_context("base:allocation")
a.connect_uri(uri); b.connect_uri(uri)
assert a.get_size() == 16 << 20 and a.can_multi_conn() and not a.is_read_only()
a.pwrite(b"x" * 4096, 8192, nbd.CMD_FLAG_FUA)
assert b.pread(4096, 8192) == b"x" * 4096
b.pwrite(b"y" * 100, 8200); a.flush()
assert a.pread(110, 8195) == b"x" * 5 + b"y" * 100 + b"x" * 5
a.zero(4096, 8192, nbd.CMD_FLAG_NO_HOLE); assert b.pread(4096, 8192) == bytes(4096)
a.zero(1 << 20, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
a.trim(1 << 20, 2 << 20, nbd.CMD_FLAG_FUA)
a.cache(4096, 0)
found = []
a.block_status(1 << 20, 2 << 20, lambda ctx, off, e, err: found.extend(e) or 0)
assert found[1] == 3, found
a.set_strict_mode(0)
for bad in [lambda: a.pread(512, 16 << 20), lambda: a.pread((32 << 20) + 1, 0), lambda: a.pwrite(b"z" * 512, (16 << 20) - 1)]:
    try:
        bad()
        assert False, "was accepted"
    except nbd.Error:
        pass
assert b.pread(1, 0) == b"\0", "others notice nothing"
many = [a.aio_pread(nbd.Buffer(65536), i * 65536) for i in range(200)]
while many:
    many = [c for c in many if not a.aio_command_completed(c)]
    if many: a.poll(1000)
"#,
        uri = server.uri("vol")
    );
    ok("nbdsh", &["-c", &script]);
}

/// fio writes with checksums at depth and reads them all back, in sizes that are no multiple of a block.
#[test]
fn fio_verifies_what_it_wrote() {
    let (dir, server) = serve("256MiB");
    let uri = format!("--uri={}", server.uri("vol"));
    let state = dir.path().to_str().unwrap();
    for (name, bs) in [("aligned", "--bs=4k"), ("odd", "--bsrange=512-65536"), ("unaligned", "--bs_unaligned=1")] {
        let mut args = vec!["--name=v", "--ioengine=nbd", &uri, "--rw=randwrite", bs, "--iodepth=16", "--size=32M"];
        args.extend(["--verify=crc32c", "--verify_fatal=1", "--numjobs=2", "--offset_increment=64M", "--randrepeat=0"]);
        args.extend(["--aux-path", state]);
        if name == "unaligned" {
            args.extend(["--bsrange=512-40000", "--blockalign=512"]);
        }
        let said = ok("fio", &args);
        assert!(said.matches("err= 0").count() >= 2, "{name}: {said}");
    }
}

/// The kernel's file system on a loop device on nbdfuse on the node: make it, fill it, unmount, check it, read it again.
#[test]
fn ext4_over_nbdfuse_and_a_loop_device() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("ran without FUSE and loop devices: they need /dev/fuse and root");
        return;
    }
    let (dir, server) = serve("256MiB");
    let script = r#"
set -eu
d=$1 uri=$2
mkdir -p $d/nbd $d/mnt
nbdfuse $d/nbd/vol "$uri" & pid=$!
loop=
cleanup() { umount $d/mnt 2>/dev/null || true; [ -z "$loop" ] || losetup -d $loop; fusermount3 -u $d/nbd || umount -l $d/nbd; wait $pid || true; }
trap cleanup EXIT
for i in $(seq 1200); do [ -e $d/nbd/vol ] && break; sleep 0.05; done
loop=$(losetup --find --show --direct-io=on $d/nbd/vol)
mkfs.ext4 -q $loop
mount $loop $d/mnt
head -c 50000000 /dev/urandom > $d/random
cp $d/random $d/mnt/a; mkdir $d/mnt/many; for i in $(seq 500); do echo $i > $d/mnt/many/$i; done
umount $d/mnt
fsck.ext4 -f -n $loop
mount -o ro $loop $d/mnt
cmp $d/random $d/mnt/a
[ "$(cat $d/mnt/many/* | sort -n | tail -1)" = 500 ]
"#;
    let work = dir.path().join("fs");
    fs::create_dir(&work).unwrap();
    ok("bash", &["-c", script, "ext4", work.to_str().unwrap(), &server.uri("vol")]);
}

/// A deadline in the export's name: what would come too late is refused at once, with the predicted wait.
#[test]
fn a_promise_in_the_name_shows_a_busy() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "1GiB", model = "constellation-es3-1tb" }"#;
    let server = Server::start(dir.path(), &config(device, "512MiB").replace("[[tenant]]", "depth = 1\n[[tenant]]"));
    let script = format!(
        r#"
import random
h = nbd.NBD(); h.connect_uri("{uri}")
patient = nbd.NBD(); patient.connect_uri("{patient}")
random.seed(1)
for i in range(40): patient.pread(4096, random.randrange(1 << 16) * 4096)
busy, ended = [], 0
cookies = [h.aio_pread(nbd.Buffer(4096), random.randrange(1 << 16) * 4096) for i in range(30)]
while cookies:
    for c in list(cookies):
        try:
            if h.aio_command_completed(c): cookies.remove(c); ended += 1
        except nbd.Error as e:
            cookies.remove(c); busy.append(e.errno)
    if cookies: h.poll(1000)
print("busy", len(busy), "ended", ended)
assert len(busy) >= 10 and ended >= 1 and set(busy) == {{"EIO"}}, (busy, ended)
"#,
        uri = server.uri("vol?deadline=30ms&busy=error"),
        patient = server.uri("vol")
    );
    ok("nbdsh", &["-c", &script]);
    let refused = run("nbdinfo", &[&server.uri("vol?deadline=soon")]);
    assert!(!refused.status.success(), "a deadline that is none is refused");
}
