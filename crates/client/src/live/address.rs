//! Address of a replica: an NBD URI.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The socket of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A unix socket.
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
    /// The same over TLS.
    Tls {
        /// `HOST:PORT`. The node's certificate must be for the host.
        host: String,
        /// The folder with `ca-cert.pem`, and for a node that asks for a certificate `client-cert.pem` and `client-key.pem`.
        certificates: PathBuf,
    },
}

/// A replica: a node and its export. `nbd://HOST[:PORT]/EXPORT`, `nbds://HOST[:PORT]/EXPORT?tls-certificates=FOLDER` or
/// `nbd+unix:///EXPORT?socket=PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The node.
    pub place: Place,
    /// The export, with the promise that its name may carry.
    pub export: String,
}

/// No address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadAddress(String);

impl fmt::Display for BadAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: write nbd://HOST[:PORT]/EXPORT, ", self.0)?;
        f.write_str("nbds://HOST[:PORT]/EXPORT?tls-certificates=FOLDER or nbd+unix:///EXPORT?socket=PATH")
    }
}
impl std::error::Error for BadAddress {}

/// NBD's own port.
const PORT: u16 = 10809;
/// The key of the folder with certificates, as other NBD clients name it.
const CERTIFICATES: &str = "tls-certificates=";

impl FromStr for Address {
    type Err = BadAddress;
    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let bad = |what: &str| BadAddress(format!("`{text}`: {what}"));
        let plain = |text: &str| decoded(text).ok_or_else(|| bad("a bad %-escape"));
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let path = rest.strip_prefix('/').ok_or_else(|| bad("a unix socket has no host"))?;
            let (export, query) = path.split_once('?').unwrap_or((path, ""));
            no_promise_in_query(export, query, "socket=").map_err(|hint| bad(&hint))?;
            let socket = value(query, "socket=").ok_or_else(|| bad("there is no socket=PATH"))?;
            return Ok(Address { place: Place::Unix(plain(socket)?.into()), export: plain(export)? });
        }
        let (secure, rest) = match (text.strip_prefix("nbd://"), text.strip_prefix("nbds://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(bad("not an NBD address")),
        };
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let (export, query) = export.split_once('?').unwrap_or((export, ""));
        let host = with_port(host).ok_or_else(|| bad("there is no host"))?;
        let folder = value(query, CERTIFICATES);
        if !secure && folder.is_some() {
            return Err(bad("tls-certificates are for nbds://"));
        }
        no_promise_in_query(export, query, if secure { CERTIFICATES } else { "" }).map_err(|hint| bad(&hint))?;
        let place = match (secure, folder) {
            (false, _) => Place::Tcp(host),
            (true, Some(folder)) => Place::Tls { host, certificates: plain(folder)?.into() },
            (true, None) => return Err(bad("there is no tls-certificates=FOLDER")),
        };
        Ok(Address { place, export: plain(export)? })
    }
}

/// A key's value in a URI's query, unless it is empty.
fn value<'a>(query: &'a str, key: &str) -> Option<&'a str> {
    query.split('&').find_map(|p| p.strip_prefix(key)).filter(|v| !v.is_empty())
}

/// A host with NBD's port, unless it has one of its own; `None` without a host.
fn with_port(host: &str) -> Option<String> {
    if host.rsplit_once(':').map_or(host, |(h, _)| h).is_empty() {
        return None;
    }
    let has_port = host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) && !host.ends_with(']');
    Some(if has_port { host.into() } else { format!("{host}:{PORT}") })
}

impl Address {
    /// Returns whether the export's name has a deadline for all reads.
    pub fn has_deadline(&self) -> bool {
        let terms = self.export.split_once('?').map_or("", |(_, terms)| terms);
        terms.split('&').any(|term| term.starts_with("deadline="))
    }

    /// The same with `term` in the export's name.
    pub fn export_with(&self, term: &str) -> String {
        let joint = if self.export.contains('?') { '&' } else { '?' };
        format!("{}{joint}{term}", self.export)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = self.export.replace('%', "%25").replace('?', "%3F");
        match &self.place {
            Place::Unix(path) => write!(f, "nbd+unix:///{export}?socket={}", path.display()),
            Place::Tcp(host) => write!(f, "nbd://{host}/{export}"),
            Place::Tls { host, certificates } => {
                write!(f, "nbds://{host}/{export}?{CERTIFICATES}{}", certificates.display())
            }
        }
    }
}

/// Refuses terms of a URI's query, beside the scheme's `own` key, that were meant for the export's name: there a `?` is written %3F and a
/// `&` %26.
fn no_promise_in_query(export: &str, query: &str, own: &str) -> Result<(), String> {
    let is_own = |p: &str| !own.is_empty() && p.starts_with(own);
    let lost: Vec<&str> = query.split('&').filter(|p| !p.is_empty() && !is_own(p)).collect();
    if lost.is_empty() {
        return Ok(());
    }
    if let Some(tls) = lost.iter().find(|p| p.starts_with("tls-")) {
        return Err(format!("`{tls}` isn't supported: of TLS only tls-certificates=FOLDER is, in nbds://"));
    }
    let joint = if export.to_ascii_uppercase().contains("%3F") { "%26" } else { "%3F" };
    let what = "isn't part of the export's name, which ends at `?`";
    let rest = if own.is_empty() { String::new() } else { format!("?{own}…") };
    Err(format!("`{}` {what}: write /{export}{joint}{}{rest}", lost.join("&"), lost.join("%26")))
}

fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'%' => {
                let hex = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(str::from_utf8(&hex).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let unix: Address = "nbd+unix:///vol%3Fdeadline=20ms?socket=/run/n.sock".parse().unwrap();
        assert_eq!(unix.export, "vol?deadline=20ms");
        assert_eq!(unix.place, Place::Unix("/run/n.sock".into()));
        assert_eq!(unix.to_string(), "nbd+unix:///vol%3Fdeadline=20ms?socket=/run/n.sock");
        assert_eq!(unix.export_with("replica=read"), "vol?deadline=20ms&replica=read");
        let tcp: Address = "nbd://node-1/vol".parse().unwrap();
        assert_eq!((tcp.place.clone(), tcp.export.as_str()), (Place::Tcp("node-1:10809".into()), "vol"));
        assert_eq!("nbd://[::1]/v".parse::<Address>().unwrap().place, Place::Tcp("[::1]:10809".into()));
        assert_eq!("nbd://[::1]:7/v".parse::<Address>().unwrap().place, Place::Tcp("[::1]:7".into()));
        assert_eq!(tcp.to_string().parse::<Address>(), Ok(tcp));
        let both = "nbd://h/vol%3Fdeadline=20ms%26busy=error";
        assert_eq!(both.parse::<Address>().unwrap().export, "vol?deadline=20ms&busy=error");
    }

    #[test]
    fn certificates_are_for_tls_and_only_there() {
        let tls: Address = "nbds://node-1/vol%3Fdeadline=20ms?tls-certificates=/etc/my%20certs".parse().unwrap();
        let place = Place::Tls { host: "node-1:10809".into(), certificates: "/etc/my certs".into() };
        assert_eq!((tls.place, tls.export.as_str()), (place, "vol?deadline=20ms"));
        let port: Address = "nbds://[::1]:7/v?tls-certificates=/c".parse().unwrap();
        assert_eq!(port.to_string(), "nbds://[::1]:7/v?tls-certificates=/c");
        for (wrong, why) in [
            ("nbds://h/vol", "there is no tls-certificates=FOLDER"),
            ("nbds://h/vol?tls-certificates=", "there is no tls-certificates=FOLDER"),
            ("nbd://h/vol?tls-certificates=/c", "tls-certificates are for nbds://"),
        ] {
            let e = wrong.parse::<Address>().unwrap_err().to_string();
            assert!(e.contains(why), "{wrong}: {e}");
        }
    }

    /// NBD's client libraries take what follows `?` for the URI's own and drop it: the promise would be lost without a word.
    #[test]
    fn a_promise_in_the_uris_own_query_is_refused_with_the_right_uri() {
        for (lost, right) in [
            ("nbd+unix:///vol?deadline=20ms&socket=/s", "/vol%3Fdeadline=20ms?socket="),
            ("nbd+unix:///vol?socket=/s&deadline=20ms", "/vol%3Fdeadline=20ms?socket="),
            ("nbd://h/vol?deadline=20ms&busy=error", "/vol%3Fdeadline=20ms%26busy=error"),
            ("nbd://h/vol%3Fdeadline=20ms?busy=error", "/vol%3Fdeadline=20ms%26busy=error"),
            ("nbds://h/vol?tls-certificates=/c&deadline=20ms", "/vol%3Fdeadline=20ms?tls-certificates="),
        ] {
            let e = lost.parse::<Address>().unwrap_err().to_string();
            assert!(e.contains(right), "{lost}: {e}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for bad in
            ["", "vol", "http://a/b", "nbd:///vol", "nbd+unix:///vol", "nbd+unix://h/vol?socket=/s", "nbd://a/%zz"]
        {
            let e = bad.parse::<Address>().unwrap_err().to_string();
            assert!(e.contains("nbd://HOST[:PORT]/EXPORT"), "{bad}: {e}");
        }
    }
}
