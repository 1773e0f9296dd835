//! Each bound on what clients may take, reached by clients: that it is reached, and what happens then. `resources.rs` has the ones that
//! are about memory, the threads' time and large numbers.

mod common;
use common::Server;
use common::client::Client;
use plimsoll_nbd::wire::{Command, CommandFlags};
use plimsoll_testkit::until;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest wait for an event that must come, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(limits: &str, tenants: &str, device: &str) -> String {
    format!(
        r#"
[listen]
unix = "nbd.sock"
tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[limits]
{limits}
[[pool]]
name = "p"
device = {{ file = "p.img", size = "256MiB"{device} }}
{tenants}
[[volume]]
name = "vol"
pool = "p"
size = "64MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#
    )
}

const TENANTS: &str =
    "[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n[[tenant]]\nname = \"u\"\nclass = \"best-effort\"\n";

/// A request for an export in one go, without structured replies.
fn asks(export: &str) -> Vec<u8> {
    let mut said = 3u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
    said.extend(b"IHAVEOPT");
    said.extend(1u32.to_be_bytes()); // NBD_OPT_EXPORT_NAME
    said.extend((export.len() as u32).to_be_bytes());
    said.extend(export.as_bytes());
    said
}

/// True if the server answers a read on this connection; false if it closes the connection. Waits for either.
fn is_served(mut stream: impl Read + Write, export: &str) -> bool {
    if stream.write_all(&asks(export)).is_err() || stream.write_all(&read_at(0)).is_err() {
        return false;
    }
    stream.read_exact(&mut [0; 18 + 10 + 16 + 512]).is_ok()
}

fn read_at(offset: u64) -> Vec<u8> {
    let mut b = 0x2560_9513_u32.to_be_bytes().to_vec();
    b.extend([0; 4]); // no flags, READ
    b.extend(1u64.to_be_bytes());
    b.extend(offset.to_be_bytes());
    b.extend(512u32.to_be_bytes());
    b
}

fn unix(server: &Server) -> UnixStream {
    let stream = UnixStream::connect(server.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn tcp(server: &Server) -> TcpStream {
    let status = server.control("GET", "/v1/status").expect(200);
    let stream = TcpStream::connect(status["node"]["listens"]["nbd_tcp"].as_str().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// True if the event log has an event with these words.
fn is_noted(server: &Server, words: &str) -> bool {
    server.control("GET", "/v1/events").expect(200).to_string().contains(words)
}

/// Members of a bound that is full go on; when one leaves, the next is let in.
fn goes_on(server: &Server, mut members: Vec<Client>) {
    for member in &mut members {
        assert_eq!(member.read(0, 512).unwrap().unwrap().len(), 512);
    }
    drop(members.pop());
    until("nobody is let in though one has left", || is_served(unix(server), "vol"));
    for member in &mut members {
        assert_eq!(member.read(0, 512).unwrap().unwrap().len(), 512);
    }
}

fn members(server: &Server, count: usize) -> Vec<Client> {
    let connect = |_| {
        let mut client = Client::connect(&server.socket(), "vol").unwrap();
        client.stream().set_read_timeout(Some(PATIENCE)).unwrap();
        // A client is let in before its tenant's seat is taken: its first answer comes after that.
        assert_eq!(client.read(0, 512).unwrap().unwrap().len(), 512);
        client
    };
    (0..count).map(connect).collect()
}

#[test]
fn connections_of_a_node_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config("connections = 4", TENANTS, ""));
    let members = members(&server, 4);
    assert!(!is_served(unix(&server), "vol"), "a fifth is let in");
    assert!(!is_served(tcp(&server), "vol"), "a fifth is let in by TCP");
    until("nobody is told", || is_noted(&server, "limits.connections is reached"));
    goes_on(&server, members);
    assert!(server.stop());
}

#[test]
fn connections_of_a_peer_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config("connections_per_peer = 3", TENANTS, ""));
    let members = members(&server, 3);
    assert!(!is_served(unix(&server), "vol"), "a fourth of this user is let in");
    until("nobody is told", || is_noted(&server, "limits.connections_per_peer is reached"));
    // The peer on TCP is another, and has as many.
    let others: Vec<TcpStream> = (0..3).map(|_| tcp(&server)).collect();
    assert!(others.iter().all(|o| is_served(o, "vol")), "another peer isn't let in");
    assert!(!is_served(tcp(&server), "vol"), "a fourth of this address is let in");
    goes_on(&server, members);
    assert!(server.stop());
}

#[test]
fn connections_of_a_tenant_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config("connections_per_tenant = 3", TENANTS, ""));
    let members = members(&server, 3);
    let refused = Client::connect(&server.socket(), "vol").err().expect("a fourth of the tenant is let in").to_string();
    assert!(refused.contains("limits.connections_per_tenant"), "{refused}");
    until("nobody is told", || is_noted(&server, "limits.connections_per_tenant"));
    // An export's information is no connection. Another tenant isn't concerned, on the same volume.
    let mut other = Client::connect(&server.socket(), "vol?tenant=u").unwrap();
    assert_eq!(other.read(0, 512).unwrap().unwrap().len(), 512);
    goes_on(&server, members);
    assert!(server.stop());
}

/// Clients that have said nothing: the one that has been silent longest gives way.
#[test]
fn handshakes_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let limits = "handshakes = 4\nhandshakes_per_peer = 4";
    let server = Server::start(dir.path(), &config(limits, TENANTS, ""));
    let served = members(&server, 2);
    let silent: Vec<UnixStream> = (0..4).map(|_| unix(&server)).collect();
    let greeted = |s: &UnixStream| (&*s).read_exact(&mut [0; 18]).is_ok();
    assert!(silent.iter().all(greeted));
    assert!(is_served(unix(&server), "vol"), "silent clients keep others out");
    let is_closed = |s: &UnixStream| {
        s.set_nonblocking(true).unwrap();
        !matches!((&*s).read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock)
    };
    until("none gave way", || silent.iter().any(is_closed));
    let closed: Vec<bool> = silent.iter().map(is_closed).collect();
    assert_eq!(closed, [true, false, false, false], "one gives way, the one that was silent longest");
    goes_on(&server, served);
    assert!(server.stop());
}

fn tenant_of<'a>(status: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    status["tenants"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap()
}

/// A tenant's permits: as many requests are inside as it may have, never more, and the rest are served after them.
#[test]
fn requests_of_a_tenant_have_a_bound() {
    const MANY: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let tenants = TENANTS.replacen("best-effort\"", "best-effort\"\njobs_max = 24\nbytes_max = \"1MiB\"", 1);
    // A modelled disk, so that requests wait.
    // Clients whose answers aren't taken yet aren't let go meanwhile.
    let patient = "payload_idle = \"1h\"\npayload_time = \"1h\"";
    let server = Server::start(dir.path(), &config(patient, &tenants, ", model = \"hdd-160g-7200\""));
    for length in [512u32, 256 << 10] {
        let mut clients = members(&server, 2);
        for client in &mut clients {
            for n in 0..MANY {
                let offset = n * 7919 % 120 * (512 << 10);
                client.send(Command::Read, CommandFlags::EMPTY, offset, length, &[]).unwrap();
            }
        }
        let (mut jobs_most, mut bytes_most) = (0u64, 0u64);
        let end = Instant::now() + PATIENCE;
        // No other read of this length fits.
        let is_full = |jobs: u64, bytes: u64| jobs == 24 || bytes + u64::from(length) > 1 << 20;
        while !is_full(jobs_most, bytes_most) {
            let status = server.control("GET", "/v1/status").expect(200);
            let permits = &tenant_of(&status, "t")["permits"];
            let (jobs, bytes) = (permits["jobs"].as_u64().unwrap(), permits["bytes"].as_u64().unwrap());
            assert!(jobs <= 24 && bytes <= 1 << 20, "{permits}");
            (jobs_most, bytes_most) = (jobs_most.max(jobs), bytes_most.max(bytes));
            assert!(Instant::now() < end, "the bound isn't reached: {jobs_most} requests, {bytes_most} bytes");
        }
        // Each is read from: answers that nobody takes keep what the other waits for.
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(|| (0..MANY).for_each(|_| drop(client.receive().unwrap().1.unwrap())));
            }
        });
    }
    assert!(server.stop());
}

/// A pool's 65,536 requests, of many tenants, each within its own bound: no tenant alone may have that many by default. Another tenant's
/// request waits for its turn and is served. So are all that filled the pool, when their volume's limit is raised.
#[test]
fn requests_in_a_pool_have_a_bound() {
    const TENANTS_MANY: usize = 68;
    const EACH: usize = 1000; // below the default of jobs_max
    let dir = tempfile::tempdir().unwrap();
    let many: String =
        (0..TENANTS_MANY).map(|n| format!("[[tenant]]\nname = \"t{n}\"\nclass = \"best-effort\"\n")).collect();
    let free = "[[volume]]\nname = \"free\"\npool = \"p\"\nsize = \"4MiB\"\ntenant = \"u\"\n";
    let limited = |iops: u32| {
        config("", &format!("throttle = true\n{TENANTS}{many}"), "").replace(
            "size = \"64MiB\"\ntenant = \"t\"\n",
            &format!("size = \"64MiB\"\ntenant = \"t\"\nthrottle = {{ iops = {iops}, iops_burst = 10 }}\n{free}"),
        )
    };
    let server = Server::start(dir.path(), &limited(50));
    let inside = || server.control("GET", "/v1/status").expect(200)["pools"][0]["inside"].as_u64().unwrap();
    let mut fillers = Vec::new();
    for n in 0..TENANTS_MANY {
        let mut stream = unix(&server);
        let mut said = asks(&format!("vol?tenant=t{n}"));
        (0..EACH).for_each(|r| said.extend(read_at(r as u64 * 512)));
        stream.write_all(&said).unwrap();
        stream.read_exact(&mut [0; 18 + 10]).unwrap();
        fillers.push(stream);
    }
    until("the pool never is full", || {
        let inside = inside();
        assert!(inside <= 65_536, "{inside}");
        inside == 65_536
    });
    let mut other = Client::connect(&server.socket(), "free").unwrap();
    other.stream().set_read_timeout(Some(PATIENCE)).unwrap();
    other.write(0, &[7; 4096]).unwrap().unwrap();
    assert_eq!(other.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    assert!(inside() > 60_000, "it was served beside a full pool");
    assert_eq!(server.control("GET", "/healthz").code, 200);
    std::fs::write(dir.path().join("node.toml"), limited(1_000_000)).unwrap();
    server.cli(&["reload"]);
    for filler in &mut fillers {
        filler.read_exact(&mut vec![0; EACH * (16 + 512)]).expect("all are served");
    }
    until("requests that were answered stay inside", || inside() == 0);
    assert!(server.stop());
}
