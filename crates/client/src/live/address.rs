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
}

/// A replica: a node and its export. `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
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
        write!(f, "{}: write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH", self.0)
    }
}
impl std::error::Error for BadAddress {}

/// NBD's own port.
const PORT: u16 = 10809;

impl FromStr for Address {
    type Err = BadAddress;
    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let bad = |what: &str| BadAddress(format!("`{text}`: {what}"));
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let path = rest.strip_prefix('/').ok_or_else(|| bad("a unix socket has no host"))?;
            let (export, query) = path.split_once('?').unwrap_or((path, ""));
            no_promise_in_query(export, query, "?socket=…").map_err(|hint| bad(&hint))?;
            let socket = query.split('&').find_map(|p| p.strip_prefix("socket="));
            let socket = socket.filter(|s| !s.is_empty()).ok_or_else(|| bad("there is no socket=PATH"))?;
            let place = Place::Unix(decoded(socket).ok_or_else(|| bad("a bad %-escape"))?.into());
            return Ok(Address { place, export: decoded(export).ok_or_else(|| bad("a bad %-escape"))? });
        }
        let rest = text.strip_prefix("nbd://").ok_or_else(|| bad("not an NBD address"))?;
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let (export, query) = export.split_once('?').unwrap_or((export, ""));
        no_promise_in_query(export, query, "").map_err(|hint| bad(&hint))?;
        let bare = host.rsplit_once(':').map_or(host, |(h, _)| h);
        if bare.is_empty() {
            return Err(bad("there is no host"));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) && !host.ends_with(']');
        let place = Place::Tcp(if has_port { host.into() } else { format!("{host}:{PORT}") });
        Ok(Address { place, export: decoded(export).ok_or_else(|| bad("a bad %-escape"))? })
    }
}

impl Address {
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
        }
    }
}

/// Refuses terms of a URI's query that were meant for the export's name: there a `?` is written %3F and a `&` %26.
fn no_promise_in_query(export: &str, query: &str, rest: &str) -> Result<(), String> {
    let lost: Vec<&str> = query.split('&').filter(|p| !p.is_empty() && !p.starts_with("socket=")).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let joint = if export.to_ascii_uppercase().contains("%3F") { "%26" } else { "%3F" };
    let what = "isn't part of the export's name, which ends at `?`";
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

    /// NBD's client libraries take what follows `?` for the URI's own and drop it: the promise would be lost without a word.
    #[test]
    fn a_promise_in_the_uris_own_query_is_refused_with_the_right_uri() {
        for (lost, right) in [
            ("nbd+unix:///vol?deadline=20ms&socket=/s", "/vol%3Fdeadline=20ms?socket="),
            ("nbd+unix:///vol?socket=/s&deadline=20ms", "/vol%3Fdeadline=20ms?socket="),
            ("nbd://h/vol?deadline=20ms&busy=error", "/vol%3Fdeadline=20ms%26busy=error"),
            ("nbd://h/vol%3Fdeadline=20ms?busy=error", "/vol%3Fdeadline=20ms%26busy=error"),
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
