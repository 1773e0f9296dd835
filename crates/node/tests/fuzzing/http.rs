//! Any bytes to the control socket are answered or hung up on, and the node goes on: also called by `fuzz/`.

use plimsoll_node::config::Config;
use plimsoll_node::http::{Control, LastProblems, Orders, router, serve_unix};
use plimsoll_node::node::Node;
use plimsoll_node::serve::Bound;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const CONFIG: &str = r#"
[[pool]]
name = "p"
device = { null = true, size = "64MiB" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "p"
size = "1MiB"
tenant = "t"
"#;

/// A node with a null device, served on a unix socket until the process ends.
fn socket() -> &'static Path {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("plimsoll-fuzz-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path); // an earlier process' of this number
        let (bound, listens) = (path.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let config = Config::parse(CONFIG, Path::new("/node.toml")).expect("a configuration");
                let node = Arc::new(Node::start(&config).await.expect("a node"));
                let control = Control {
                    node,
                    bound: Bound::default(),
                    token: None,
                    local_reads: true,
                    started: Instant::now(),
                    last_problems: LastProblems::default(),
                    orders: Orders::new().0,
                };
                let listener = tokio::net::UnixListener::bind(&bound).expect("a socket");
                listens.0.send(()).expect("it is waited for");
                serve_unix(listener, router(Arc::new(control)), 64).await;
            });
        });
        listens.1.recv().expect("it listens");
        path
    })
}

/// Sends bytes; if they don't make sure of an end themselves, nothing comes after them.
fn exchange(bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(15))).expect("set");
    let _ = stream.write_all(bytes); // it may hang up before all is said
    if !ends {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("no answer and no end: {:?}", bytes.escape_ascii())
        }
        _ => answer,
    }
}

/// Sends `data`: as it is if its first byte is even, else as the body of a request that the second byte chooses.
///
/// # Panics
/// If there is neither an answer nor an end, or the answer is an error of ours.
pub fn fuzz_one(data: &[u8]) {
    let [how, which, rest @ ..] = data else { return };
    let bytes = if how & 1 == 0 {
        rest.to_vec()
    } else {
        const REQUESTS: [&str; 8] = [
            "POST /v1/volumes",
            "PATCH /v1/volumes/vol",
            "PUT /v1/tenants/t",
            "PUT /v1/tenants/u",
            "PATCH /v1/pools/p/settings",
            "POST /v1/pools/p/cache/give-up",
            "POST /v1/pools/p/recover",
            "DELETE /v1/volumes/x",
        ];
        let request = REQUESTS[usize::from(*which) % REQUESTS.len()];
        let head = format!(
            "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            rest.len()
        );
        [head.as_bytes(), rest].concat()
    };
    let answer = exchange(&bytes, how & 1 == 1);
    assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}\n{}", bytes.escape_ascii(), answer.escape_ascii());
}

/// After all of it the node answers as ever.
///
/// # Panics
/// If it doesn't.
pub fn answers() {
    let answer = exchange(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", true);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", answer.escape_ascii());
}
