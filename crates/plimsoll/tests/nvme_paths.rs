//! Paths of NVMe/TCP hosts: a namespace's ANA state, and requests that another path may serve. The kernel as host:
//! tests/guest_nvme.sh.

mod common;
use common::client::Client;
use common::nvme::{
    HOST, Host, INACCESSIBLE, Listener, NON_OPTIMIZED, OPTIMIZED, PLAIN, identifiers, serve, serving, start,
};
use common::{Server, config, http};
use plimsoll_nbd::wire::{Command as NbdCommand, CommandFlags};
use plimsoll_nvme::command::Status;
use std::path::Path;
use std::time::{Duration, Instant};

const DEVICE: &str = r#"{ file = "p.img", size = "64MiB" }"#;
/// Writes as a client that writes to all replicas.
fn writer(dir: &Path) -> Client {
    Client::connect(&dir.join("nbd.sock"), "vol?replica=write").unwrap()
}

/// A copy that may lack writes isn't read through any path, and its hosts hear of it; nor while a resync of it is incomplete.
#[test]
fn a_copy_that_may_lack_writes_is_inaccessible_until_its_resync_is_complete() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (server, address) = serve(dirs[0].path(), DEVICE, "vol?replica=read", "");
    let peer = Server::start(dirs[1].path(), &config(DEVICE, "16MiB"));
    let mut writers = [writer(dirs[0].path()), writer(dirs[1].path())];
    for w in &mut writers {
        w.write(8192, &[1; 4096]).unwrap().unwrap();
    }
    let mut listener = Listener::new(&address);
    let mut io = Host::io(&address, PLAIN, listener.controller, 1);
    assert_eq!(listener.ana(), (OPTIMIZED, 0));
    assert_eq!(io.read(16, 8), Ok(vec![1; 4096]));

    // The writer's connection to this node is cut off. The other node gets one more change.
    let [lost, mut kept] = writers;
    drop(lost);
    kept.write(8192, &[2; 4096]).unwrap().unwrap();
    kept.send(NbdCommand::Disconnect, CommandFlags::EMPTY, 0, 0, &[]).unwrap();
    assert_eq!(listener.changed(), (INACCESSIBLE, 1));
    assert_eq!(io.read(16, 8), Err(Status::INACCESSIBLE));

    // A resync that was begun, and isn't complete.
    let socket = dirs[0].path().join("control.sock");
    let begin = serde_json::json!({ "replica": { "catch-up": { "attempt": 7 } } });
    http::unix(&socket, "PATCH", "/v1/volumes/vol", Some(&begin)).expect(200);
    assert_eq!(io.read(16, 8), Err(Status::INACCESSIBLE), "however often it is asked");
    assert_eq!(listener.ana(), (INACCESSIBLE, 1));

    // Whoever connects now is told at once.
    let mut late = Listener::new(&address);
    assert_eq!(late.ana(), (INACCESSIBLE, 0));

    let (to, from) = (server.uri("vol"), peer.uri("vol"));
    server.cli(&["volume", "resync", "vol", "--replica", &to, "--from", &from]);
    assert_eq!(listener.changed(), (OPTIMIZED, 2));
    assert_eq!(late.changed(), (OPTIMIZED, 1));
    assert_eq!(io.read(16, 8), Ok(vec![2; 4096]));
    assert!(server.stop() && peer.stop());
}

/// A block that one node can't read: the host is sent to the other node, and hears that it is the better one.
#[test]
fn a_read_that_fails_on_a_copy_is_for_another_path_and_so_are_later_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), DEVICE, "vol?replica=read", "");
    let mut listener = Listener::new(&address);
    let mut io = Host::io(&address, PLAIN, listener.controller, 1);
    server.cli(&["inject", "vol", "--errors", "--only", "reads", "--for", "10m"]);
    assert_eq!(io.read(16, 8), Err(Status::INACCESSIBLE));
    // Linux reads the log page after that status: it has the new state already, whether the event has come or not.
    let mut late = Listener::new(&address);
    assert_eq!(late.ana(), (NON_OPTIMIZED, 0));
    assert_eq!(listener.changed(), (NON_OPTIMIZED, 1));
    assert_eq!(io.read(32, 8), Err(Status::INACCESSIBLE), "another one");
    // It has failed once it comes back, not before another path can have been asked.
    let began = Instant::now();
    let back = loop {
        let status = io.read(16, 8).expect_err("reads fail");
        if status != Status::INACCESSIBLE {
            break status;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it is sent round for ever");
    };
    assert_eq!(back, Status::UNRECOVERED_READ);
    server.cli(&["inject", "vol", "--stop"]);
    assert_eq!(io.read(16, 8), Ok(vec![0; 4096]), "it is served nevertheless");
    assert!(server.stop());
}

/// A node with a copy that has seen `changes` changes, as one of several.
fn with_copy(dir: &Path, path: u16, changes: u64) -> (Server, String) {
    let server = Server::start(dir, &config(DEVICE, "16MiB"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    for n in 0..changes {
        client.write(n * 4096, &[n as u8; 4096]).unwrap().unwrap();
    }
    drop(client);
    assert!(server.stop());
    let config = serving(DEVICE, "vol?replica=read", &format!("path = {path}\n"));
    start(dir, &config.replace("size = \"16MiB\"\n", "size = \"16MiB\"\nread_only = true\n"))
}

/// A copy that was changed after its hosts joined it with others: its controllers' identifier isn't the copy's any more.
#[test]
fn a_copy_that_was_changed_is_inaccessible() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = with_copy(dir.path(), 1, 3);
    let mut listener = Listener::new(&address);
    assert_eq!(listener.ana(), (OPTIMIZED, 0));
    let mut io = Host::io(&address, PLAIN, listener.controller, 1);
    assert_eq!(io.read(8, 8), Ok(vec![1; 4096]));
    // The reload makes the volume writable; subsystems stay until the restart.
    std::fs::write(dir.path().join("node.toml"), config(DEVICE, "16MiB")).unwrap();
    server.cli(&["reload"]);
    Client::connect(&server.socket(), "vol").unwrap().write(4096, &[9; 4096]).unwrap().unwrap();
    assert_eq!(listener.changed(), (INACCESSIBLE, 1));
    // A host that connects anew gets another identifier, and isn't told that the data are the others'.
    assert_eq!(Listener::new(&address).ana(), (OPTIMIZED, 0));
    assert!(server.stop());
}

/// Linux joins two paths if their namespaces have the same identifiers. Copies that differ mustn't.
#[test]
fn copies_that_have_seen_different_changes_are_different_namespaces() {
    let dirs: [tempfile::TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let nodes = [(1, 3), (2, 3), (3, 4)].map(|(path, changes)| with_copy(dirs[path - 1].path(), path as u16, changes));
    let [one, two, other] = [0, 1, 2].map(|n| identifiers(&nodes[n].1));
    assert_eq!(one, two, "the same changes");
    assert_ne!(one.0, other.0);
    assert_eq!(one.1, other.1, "it is one subsystem");
    for (server, _) in nodes {
        assert!(server.stop());
    }
    // A volume on one node keeps its identifier, whatever is written.
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), DEVICE, "vol", "");
    let before = identifiers(&address);
    Client::connect(&server.socket(), "vol").unwrap().write(0, &[1; 512]).unwrap().unwrap();
    assert_eq!(identifiers(&address), before);
    assert!(server.stop());
}

/// A host that asks for a volume whose pool isn't there yet may ask again: Linux gives up a controller whose refusal says that it may not.
#[test]
fn a_host_may_ask_again_for_a_volume_that_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let away = dir.path().join("away.img");
    let second = |volume: &str| {
        format!(
            "[[pool]]\nname = \"q\"\ndevice = {{ file = \"away.img\", size = \"64MiB\" }}\n[[volume]]\nname = \"{volume}\"\npool = \"q\"\nsize = \"16MiB\"\ntenant = \"t\"\n[[subsystem]]\nnqn = \"nqn.2026-11.test:away\"\nexport = \"{volume}\"\n"
        )
    };
    let text = serving(DEVICE, "vol", &second("away"));
    let (server, _) = start(dir.path(), &text);
    assert!(server.stop());
    // Its device comes later than the node.
    std::fs::rename(&away, dir.path().join("kept.img")).unwrap();
    std::fs::create_dir(&away).unwrap();
    let (server, address) = start(dir.path(), &text);
    let connect = |subsystem| Host::open(&address, PLAIN).connect(0, 0xffff, (HOST, subsystem));
    assert_eq!(connect("nqn.2026-11.test:away"), Err(Status::CONNECT_BUSY));
    assert_eq!(connect("nqn.2026-11.test:none"), Err(Status::CONNECT_PARAMETER), "no such subsystem");
    std::fs::remove_dir(&away).unwrap();
    std::fs::rename(dir.path().join("kept.img"), &away).unwrap();
    server.cli(&["reload"]);
    assert!(connect("nqn.2026-11.test:away").is_ok());
    assert!(server.stop());
}
