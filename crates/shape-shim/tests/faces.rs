//! Faces of the library that no server of the others' tests calls: each does what the C library, or OpenSSL, would have done.

mod common;

use common::shim;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

/// Uses OpenSSL as a plug-in of a server does that has none itself. A read of a session without a role is an error of the protocol's (1).
const PLUG_IN: &str = r#"
void *TLS_method(void); void *SSL_CTX_new(void *); void *SSL_new(void *);
int SSL_read(void *, void *, int); int SSL_get_error(void *, int);
int error_of_a_read(void) {
    void *ssl = SSL_new(SSL_CTX_new(TLS_method()));
    char byte;
    return SSL_get_error(ssl, SSL_read(ssl, &byte, 1));
}
"#;

fn python(text: &str, argument: &Path) -> Output {
    let mut python = Command::new("python3");
    python.args(["-c", text]).arg(argument).env("LD_PRELOAD", shim());
    python.output().expect("python3 (`make test` installs it)")
}

#[test]
fn a_plug_ins_own_openssl_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let (source, plug_in) = (dir.path().join("plug.c"), dir.path().join("plug.so"));
    std::fs::write(&source, PLUG_IN).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).args([&plug_in, &source]).arg("-l:libssl.so.3");
    let compiled = cc.output().expect("cc (`make test` installs it)");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    // Python loads it for itself alone.
    let done = python("import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).error_of_a_read())", &plug_in);
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "1", "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_read_beyond_its_buffer_ends_the_program() {
    for call in [
        "__read_chk(fd, b, ctypes.c_size_t(SIZE), ctypes.c_size_t(4))",
        "__recv_chk(fd, b, ctypes.c_size_t(SIZE), ctypes.c_size_t(4), 0)",
        "__recvfrom_chk(fd, b, ctypes.c_size_t(SIZE), ctypes.c_size_t(4), 0, None, None)",
    ] {
        let text = "import ctypes, socket\nlib = ctypes.CDLL(None)\na, c = socket.socketpair()\nc.send(b'12345678')\n\
                    fd, b = a.fileno(), ctypes.create_string_buffer(8)\nprint(lib.CALL, b.value)";
        let run = |size: &str| python(&text.replace("CALL", &call.replace("SIZE", size)), Path::new(""));
        let fits = run("4");
        assert_eq!(String::from_utf8_lossy(&fits.stdout).trim(), "4 b'1234'", "{call}: {fits:?}");
        assert_eq!(run("8").status.signal(), Some(6), "{call}");
    }
}
