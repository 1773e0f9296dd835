//! Reports the node's state to a service manager (systemd's sd_notify): ready, reloading, ending, and a line of status.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if one started the node and wants to know.
#[derive(Debug)]
pub struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// The one that the environment names.
    pub fn of_environment() -> Notify {
        Notify::at(std::env::var("NOTIFY_SOCKET").ok().as_deref())
    }

    fn at(socket: Option<&str>) -> Notify {
        let open = |name: &str| -> io::Result<(UnixDatagram, SocketAddr)> {
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(name),
            };
            let from = UnixDatagram::unbound()?;
            from.set_nonblocking(true)?;
            Ok((from, address?))
        };
        Notify(socket.and_then(|name| open(name).ok()))
    }

    /// The node serves.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The node reads its configuration anew; `ready` ends it.
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let us = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={us}\nSTATUS=reloading"));
    }

    /// The node is ending, and needs as long as `left` at most.
    pub fn ending(&self, left: Duration, status: &str) {
        let us = (left + Duration::from_secs(5)).as_micros();
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={us}\nSTATUS={status}"));
    }

    /// A manager that doesn't listen is its own business.
    fn send(&self, text: &str) {
        if let Some((from, to)) = &self.0 {
            let _ = from.send_to_addr(text.as_bytes(), to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_by_name_or_by_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("plimsoll-test-{}", std::process::id());
        let heard = |manager: UnixDatagram, notify: Notify| {
            notify.ready("serving");
            notify.ending(Duration::from_secs(1), "3 requests inside");
            let mut buffer = [0; 256];
            let mut next = || {
                let n = manager.recv(&mut buffer).unwrap();
                String::from_utf8_lossy(&buffer[..n]).into_owned()
            };
            assert_eq!(next(), "READY=1\nSTATUS=serving");
            assert_eq!(next(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=6000000\nSTATUS=3 requests inside");
        };
        heard(UnixDatagram::bind(&path).unwrap(), Notify::at(path.to_str()));
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        heard(UnixDatagram::bind_addr(&address).unwrap(), Notify::at(Some(&format!("@{name}"))));
        Notify::at(None).ready("nobody hears it");
    }
}
