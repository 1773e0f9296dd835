//! Clients over TCP with TLS, by their certificates' names: two that nobody here wrote (libnbd and qemu, both with GnuTLS), and our own.

mod common;
use common::{Server, config, ok, run};
use plimsoll_client::live::{Address, Options, Volume, Writer};
use plimsoll_testkit::{block_on, until};
use std::path::Path;

fn serve(dir: &Path, required: bool) -> (Server, String) {
    common::certify(dir);
    let tls = format!(
        "unix = \"nbd.sock\"\ntcp = \"127.0.0.1:0\"\n[listen.tls]\ncertificate = \"server.crt\"\nkey = \"server.key\"\n\
         client_ca = \"ca.crt\"\nrequired = {required}\n"
    );
    let alice = "[[grant]]\npeer = \"cert:alice\"\nvolumes = [\"vol\"]\n";
    let config = config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB")
        .replace("unix = \"nbd.sock\"\n", &tls)
        .replace("peer = \"local\"\nvolumes = [\"*\"]", "peer = \"local\"\nvolumes = []");
    let server = Server::start(dir, &(config + alice));
    let status = server.control("GET", "/v1/status").expect(200);
    let address = status["node"]["listens"]["nbd_tcp"].as_str().expect("it listens on TCP").to_string();
    (server, address)
}

#[test]
fn a_certificate_opens_what_was_granted_to_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), true);
    let uri = |who: &str| format!("nbds://{address}/vol?tls-certificates={}", dir.path().join(who).display());
    let raw = dir.path().join("raw");
    let mut rng = plimsoll_base::Rng::new(1, "tls");
    let bytes: Vec<u8> = (0..2 << 20).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    std::fs::write(&raw, &bytes).unwrap();
    ok("nbdcopy", &["--connections=2", "--flush", raw.to_str().unwrap(), &uri("alice")]);
    let back = dir.path().join("back");
    ok("nbdcopy", &[&uri("alice"), back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == bytes, "what came back over TLS differs");

    let bob = run("nbdinfo", &[&uri("bob")]);
    let said = String::from_utf8_lossy(&bob.stderr).into_owned();
    assert!(!bob.status.success() && said.contains("vol"), "bob was granted nothing: {said}");
    let mallory = run("nbdinfo", &[&uri("mallory")]);
    assert!(!mallory.status.success(), "an unknown authority's client is let in");
    let plain = run("qemu-img", &["info", &format!("nbd://{address}/vol")]);
    let said = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert!(!plain.status.success() && said.contains("TLS"), "without TLS: {said}");
    assert!(server.stop());
}

/// The same with qemu, which brings its own handshake; and without a certificate where TLS is a choice.
#[test]
fn qemu_over_tls_and_plain_clients_where_tls_is_a_choice() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), false);
    let port = address.rsplit(':').next().unwrap();
    let credentials = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", dir.path().join("alice").display());
    let image = format!("driver=nbd,host=127.0.0.1,port={port},export=vol,tls-creds=tls");
    let said = ok(
        "qemu-io",
        &[
            "--object",
            &credentials,
            "--image-opts",
            &image,
            "-c",
            "write -P 7 1000 70000",
            "-c",
            "read -P 7 1000 70000",
        ],
    );
    assert!(!said.contains("verification failed"), "{said}");
    let plain = run("nbdinfo", &[&format!("nbd://{address}/vol")]);
    assert!(!plain.status.success(), "who shows no certificate was granted nothing");
    assert!(server.stop());
}

fn shown(server: &Server) -> serde_json::Value {
    serde_json::from_str(&server.cli(&["volume", "show", "vol", "--json"])).expect("JSON")
}

/// Each life of a writer is a runtime of its own, which ends with the writer: what it says last must have gone out.
#[test]
fn our_client_reads_and_writes_over_tls_and_its_farewell_arrives() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), true);
    let alice: Address =
        format!("nbds://{address}/vol?tls-certificates={}/alice", dir.path().display()).parse().unwrap();
    let bytes: Vec<u8> = (0..4 << 20).map(|i: u32| (i % 251) as u8).collect();
    for life in 0..8 {
        block_on(async {
            let writer = Writer::open(std::slice::from_ref(&alice), &Options::default()).await.expect("a writer");
            writer.write(life << 12, &bytes).await.expect("written");
            writer.close().await;
        });
        until("the writer's connection has gone", || shown(&server)["connections"] == 0);
        assert_eq!(shown(&server)["behind"], "no", "life {life}: the node has lost its writer");
    }
    block_on(async {
        let volume = Volume::open(&[alice], &Options::default()).await.expect("a volume");
        let all = volume.read(7 << 12..(7 << 12) + (4 << 20), None).await.expect("read");
        assert!(all == bytes, "what came back over TLS differs");
    });
    assert!(server.stop());
}

#[test]
fn our_client_names_the_reason_why_tls_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), true);
    let of = |folder: &str| dir.path().join(folder).display().to_string();
    // One that trusts another authority; one without a certificate; one whose key is missing.
    for (made, without) in [("doubts", ""), ("nobody", "client-cert.pem"), ("keyless", "client-key.pem")] {
        ok("cp", &["-r", &of("alice"), &of(made)]);
        match without {
            "" => drop(std::fs::copy(of("stranger.crt"), of("doubts/ca-cert.pem")).unwrap()),
            file => std::fs::remove_file(of(&format!("{made}/{file}"))).unwrap(),
        }
    }
    let port = address.rsplit(':').next().unwrap();
    for (host, who, why) in [
        (address.as_str(), "mallory", "TLS: received fatal alert"),
        (&address, "nobody", "TLS: received fatal alert"),
        (&address, "doubts", "TLS: invalid peer certificate: UnknownIssuer"),
        (&address, "keyless", "keyless/client-key.pem"),
        (&address, "missing", "missing/ca-cert.pem"),
        (&address, "bob", "vol"),
        (&format!("127.1:{port}"), "alice", "127.1"),
    ] {
        let uri: Address = format!("nbds://{host}/vol?tls-certificates={}", of(who)).parse().unwrap();
        let e = block_on(Volume::open(&[uri], &Options::default())).err().expect(who).to_string();
        assert!(e.contains(why), "{who}: {e}");
    }
    // A node that has no TLS refuses it, as an option of the protocol.
    let plain = tempfile::tempdir().unwrap();
    let open = config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB")
        .replace("unix = \"nbd.sock\"\n[control]", "tcp = \"127.0.0.1:0\"\n[control]");
    let other = Server::start(plain.path(), &open);
    let address =
        other.control("GET", "/v1/status").expect(200)["node"]["listens"]["nbd_tcp"].as_str().unwrap().to_string();
    let uri: Address = format!("nbds://{address}/vol?tls-certificates={}", of("alice")).parse().unwrap();
    let e = block_on(Volume::open(&[uri], &Options::default())).err().expect("no TLS").to_string();
    assert!(e.contains("refused option 5"), "{e}");
    assert!(server.stop() && other.stop());
}
