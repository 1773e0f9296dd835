//! Clients over TCP with TLS that nobody here wrote (libnbd and qemu, both with GnuTLS): who they are is in their certificate.

mod common;
use common::{Server, config, ok, run};
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
