//! A pool whose metadata wait for their device: the control API, handshakes, TLS clients and the other pools go on meanwhile.

mod common;
use common::Server;
use common::client::Client;
use common::mount::{Failing, may_mount};
use plimsoll_testkit::until;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// More clients than the node has threads that may block.
const MANY: usize = 600;

fn config(failing: &Failing) -> String {
    format!(
        r#"
[listen]
unix = "nbd.sock"
tcp = "127.0.0.1:0"
[listen.tls]
certificate = "server.crt"
key = "server.key"
client_ca = "ca.crt"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[limits]
handshakes = 2000
handshakes_per_peer = 2000
[[pool]]
name = "good"
device = {{ file = "good.img", size = "128MiB" }}
[[pool]]
name = "slow"
device = {{ file = "{}", format = true }}
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "good"
size = "16MiB"
tenant = "t"
[[volume]]
name = "unopened"
pool = "good"
size = "16MiB"
tenant = "t"
[[volume]]
name = "waits"
pool = "slow"
size = "8MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
[[grant]]
peer = "cert:alice"
volumes = ["vol"]
"#,
        failing.device.path.display()
    )
}

/// Asks for an export for writing, and doesn't wait for the answer.
fn ask_to_open(server: &Server, export: &str) -> UnixStream {
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    let mut said = 3u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
    said.extend(b"IHAVEOPT");
    said.extend(1u32.to_be_bytes()); // NBD_OPT_EXPORT_NAME
    said.extend((export.len() as u32).to_be_bytes());
    said.extend(export.as_bytes());
    stream.write_all(&said).unwrap();
    stream
}

/// Opens an export and writes to it, in its whole handshake and after.
fn open_and_write(server: &Server, export: &str) {
    let mut stream = ask_to_open(server, export);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.read_exact(&mut [0; 18 + 10]).unwrap_or_else(|e| panic!("the handshake for {export} waits: {e}"));
    let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
    write.extend([0, 0, 0, 1]);
    write.extend(1u64.to_be_bytes());
    write.extend((MIB as u64).to_be_bytes());
    write.extend(4096u32.to_be_bytes());
    write.extend([9; 4096]);
    stream.write_all(&write).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap_or_else(|e| panic!("a write to {export} waits: {e}"));
    assert_eq!(reply[4..8], [0; 4]);
}

#[test]
fn metadata_that_wait_for_their_device_hold_up_nobody_else() {
    if !may_mount() {
        return;
    }
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(dir.path());
    common::certify(dir.path());
    let server = Server::start(dir.path(), &config(&failing));
    let mut served = Client::connect(&server.socket(), "vol").unwrap();
    served.stream().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    served.write(0, &[7; 4096]).unwrap().unwrap();
    failing.hold_flushes();
    let create = ["volume", "create", "new", "--pool", "slow", "--size", "4MiB", "--tenant", "t"];
    std::thread::scope(|scope| {
        // A change by the operator, and clients that are the first to open a volume: all wait for the metadata of `slow`.
        let created = scope.spawn(|| server.cli(&create));
        until("the change doesn't reach the device", || failing.is_holding());
        let opening: Vec<UnixStream> = (0..MANY).map(|_| ask_to_open(&server, "waits")).collect();

        let went_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..3 {
                let status = server.control("GET", "/v1/status").expect(200);
                assert_eq!(status["pools"].as_array().unwrap().len(), 2);
                assert_eq!(server.control("GET", "/healthz").code, 200);
                assert!(server.control("GET", "/metrics").body.contains("plimsoll_"));
                server.control("GET", "/v1/volumes").expect(200);
                served.write(0, &[8; 4096]).unwrap().unwrap();
                served.flush().unwrap().unwrap();
                assert_eq!(served.read(0, 4096).unwrap().unwrap(), [8; 4096]);
                // Handshakes: of a volume that somebody has open, and of one whose metadata have to be changed.
                for export in ["vol", "unopened"] {
                    open_and_write(&server, export);
                }
            }
            let status = server.control("GET", "/v1/status").expect(200);
            let address = status["node"]["listens"]["nbd_tcp"].as_str().unwrap();
            let uri = format!("nbds://{address}/vol?tls-certificates={}", dir.path().join("alice").display());
            let (raw, back) = (dir.path().join("raw"), dir.path().join("back"));
            let bytes: Vec<u8> = (0..16 * MIB / 8).flat_map(|n| (n as u64 * 7919).to_le_bytes()).collect();
            std::fs::write(&raw, &bytes).unwrap();
            common::ok("nbdcopy", &["--flush", raw.to_str().unwrap(), &uri]);
            common::ok("nbdcopy", &[&uri, back.to_str().unwrap()]);
            assert!(std::fs::read(&back).unwrap() == bytes, "what came back over TLS differs");
            // The way that the refusal of the tenant's change names.
            let said = server.cli_fails(&["tenant", "set", "t", "--weight", "77"]);
            assert!(said.contains("by its section of the configuration and `plimsoll reload`"), "{said}");
            let heavier = std::fs::read_to_string(dir.path().join("node.toml")).unwrap();
            let section = "name = \"t\"\nclass = \"best-effort\"\n";
            let heavier = heavier.replacen(section, &format!("{section}weight = 77\n"), 1);
            std::fs::write(dir.path().join("node.toml"), heavier).unwrap();
            assert!(server.cli(&["reload"]).contains("tenant `t`"));
            let t = server.control("GET", "/v1/tenants/t").expect(200);
            assert!(t.to_string().contains("77"), "{t}");
            assert!(!created.is_finished(), "the change was acknowledged before it was durable");
        }));
        // Before anything else: threads wait for it.
        failing.let_go();
        if let Err(why) = went_on {
            std::panic::resume_unwind(why);
        }
        created.join().unwrap();
        drop(opening);
    });
    Client::connect(&server.socket(), "waits").unwrap().write(0, &[1; 4096]).unwrap().unwrap();
    assert!(server.control("GET", "/v1/volumes").expect(200).to_string().contains("\"new\""));
    assert!(server.stop());
}

/// A pool whose device hangs in the middle of a change: changes of the other pools and reloads go on. Those of the pool itself, and those of
/// tenants, which every pool keeps, are refused with its name.
#[test]
fn a_pool_that_hangs_stops_changes_of_itself_only() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(dir.path());
    common::certify(dir.path());
    let config = config(&failing);
    let server = Server::start(dir.path(), &config);
    failing.hold_flushes();
    let create = ["volume", "create", "new", "--pool", "slow", "--size", "4MiB", "--tenant", "t"];
    std::thread::scope(|scope| {
        let created = scope.spawn(|| server.cli(&create));
        until("the change doesn't reach the device", || failing.is_holding());
        let went_on = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            server.cli(&["volume", "create", "other", "--pool", "good", "--size", "4MiB", "--tenant", "t"]);
            server.cli(&["volume", "grow", "other", "--size", "8MiB"]);
            server.cli(&["volume", "rename", "other", "renamed"]);
            server.cli(&["volume", "deadline", "renamed", "20ms"]);
            server.cli(&["volume", "delete", "renamed", "--yes"]);
            // The names of volumes are the node's.
            let taken = ["volume", "create", "new", "--pool", "good", "--size", "4MiB", "--tenant", "t"];
            let said = server.cli_fails(&taken);
            assert!(said.contains("volume `new`") && said.contains("just being made, changed or deleted"), "{said}");
            // A reload does all but what concerns the volumes of that pool.
            let wider = config.replace("volumes = [\"vol\"]", "volumes = [\"vol\", \"more\"]");
            let more = "[[volume]]\nname = \"more\"\npool = \"good\"\nsize = \"4MiB\"\ntenant = \"u\"\n[[grant]]";
            let tenant = "[[tenant]]\nname = \"u\"\nclass = \"best-effort\"\n[[tenant]]";
            let wider = wider.replacen("[[tenant]]", tenant, 1).replacen("[[grant]]", more, 1);
            std::fs::write(dir.path().join("node.toml"), &wider).unwrap();
            let said = server.cli(&["reload"]);
            assert!(
                said.contains("tenant `u`") && said.contains("volume `more`") && !said.contains("failed"),
                "{said}"
            );
            let grown = wider.replacen("size = \"8MiB\"", "size = \"12MiB\"", 1);
            std::fs::write(dir.path().join("node.toml"), grown).unwrap();
            let failed = server.control("POST", "/v1/reload").expect(200)["failed"].to_string();
            assert!(failed.contains("volume `waits`") && failed.contains("of pool `slow` hasn't ended"), "{failed}");
            for refused in
                [&["volume", "grow", "waits", "--size", "16MiB"][..], &["tenant", "set", "t", "--deadline", "20ms"]]
            {
                let said = server.cli_fails(refused);
                assert!(said.contains("an earlier change of pool `slow` hasn't ended for "), "{said}");
            }
            assert!(!created.is_finished(), "the change was acknowledged before it was durable");
        }));
        // Before anything else: threads wait for it.
        failing.let_go();
        if let Err(why) = went_on {
            std::panic::resume_unwind(why);
        }
        created.join().unwrap();
    });
    server.cli(&["tenant", "set", "t", "--deadline", "20ms"]);
    let said = server.cli(&["reload"]);
    assert!(said.contains("volume `waits`") && !said.contains("failed"), "{said}");
    server.cli(&["volume", "grow", "waits", "--size", "16MiB"]);
    assert!(server.stop());
}
