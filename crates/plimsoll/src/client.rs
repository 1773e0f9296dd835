//! Talking to a node's control API, over its unix socket or TCP.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use plimsoll_node::http::Token;
use plimsoll_node::http::api::{ErrorBody, NodeStatus, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Address of the node, and the format of its answers.
#[derive(Args, Clone, Debug)]
pub struct Control {
    /// Control socket or address of the node: a path, HOST:PORT or http://HOST:PORT [default: /run/plimsoll/control.sock if it may be
    /// used, else http://127.0.0.1:7700].
    #[arg(long, value_name = "PATH|URL", env = "PLIMSOLL_CONTROL", default_value_t = usual(), hide_default_value = true)]
    control: String,
    /// File with the token, which changes over TCP need; the control socket needs none, and is preferred.
    #[arg(long, value_name = "FILE", env = "PLIMSOLL_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The packaged node's socket, if it may be used.
fn usual() -> String {
    const PACKAGED: &str = "/run/plimsoll/control.sock";
    let may = rustix::fs::access(PACKAGED, rustix::fs::Access::WRITE_OK).is_ok();
    if may { PACKAGED } else { "http://127.0.0.1:7700" }.to_string()
}

impl Control {
    /// The node at a path or URL, with its token if it takes one for reading.
    pub fn at(control: &str, token_file: Option<&Path>) -> Control {
        Control { control: control.to_string(), token_file: token_file.map(Path::to_path_buf), json: false }
    }

    /// The node's socket or address, as the user named it.
    pub fn name(&self) -> &str {
        &self.control
    }
}

/// Answers longer than this are refused: a status of 65,536 volumes is shorter.
const ANSWER_BYTES_MAX: usize = 256 << 20;
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// A node answers what it is in milliseconds; a change may have to zero a volume first, and isn't timed.
const READ_TIME: Duration = Duration::from_secs(15);

/// The error of a node that doesn't answer, in contrast to one that refuses.
#[derive(Debug)]
pub struct Silent(String);

impl std::fmt::Display for Silent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Silent {}

/// A connection to a node: made anew for each call, so that a restart in between doesn't matter.
pub struct Client {
    control: Control,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// Nothing is opened yet.
    pub fn new(control: &Control) -> Result<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Client { control: control.clone(), runtime })
    }

    /// Reads `path`.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.get_within(path, READ_TIME)
    }

    /// Reads a `path` that takes the token over TCP, if it's answered within so long. The control socket of a node on this host is preferred.
    pub fn get_private_within<T: DeserializeOwned>(&self, path: &str, time: Duration) -> Result<T> {
        let call = async {
            let mut place = self.place()?;
            if self.control.token_file.is_none() {
                place = self.without_token(place).await;
            }
            self.call_at(place, Method::GET, path, None).await
        };
        let answer = self.runtime.block_on(async { tokio::time::timeout(time, call).await });
        self.understand(path, &answer.map_err(|_| self.silent("it doesn't answer: see its log"))??)
    }

    /// Reads `path`, if it's answered within so long.
    pub fn get_within<T: DeserializeOwned>(&self, path: &str, time: Duration) -> Result<T> {
        let call = self.call(Method::GET, path, None);
        let answer = self.runtime.block_on(async { tokio::time::timeout(time, call).await });
        self.understand(path, &answer.map_err(|_| self.silent("it doesn't answer: see its log"))??)
    }

    /// Sends `body` to `path`; what it says.
    pub fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: &impl Serialize) -> Result<T> {
        let body = serde_json::to_vec(body).context("a request that can't be written as JSON")?;
        let answer = self.runtime.block_on(self.call(method, path, Some(body)))?;
        self.understand(path, &answer)
    }

    /// Sends `body` to `path`, which has no answer.
    pub fn tell(&self, method: Method, path: &str, body: &impl Serialize) -> Result<()> {
        let body = serde_json::to_vec(body).context("a request that can't be written as JSON")?;
        self.runtime.block_on(self.call(method, path, Some(body))).map(drop)
    }

    /// Asks for a change without a body, and reads the answer.
    pub fn order_for<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T> {
        let answer = self.runtime.block_on(self.call(method, path, None))?;
        self.understand(path, &answer)
    }

    /// Asks for a change that has no answer.
    pub fn order(&self, method: Method, path: &str) -> Result<()> {
        self.runtime.block_on(self.call(method, path, None)).map(drop)
    }

    /// Reads `path` as text.
    pub fn get_text(&self, path: &str) -> Result<String> {
        let answer = self.runtime.block_on(self.call(Method::GET, path, None))?;
        String::from_utf8(answer.to_vec()).map_err(|_| self.failed("its answer is no text"))
    }

    fn understand<T: DeserializeOwned>(&self, path: &str, answer: &[u8]) -> Result<T> {
        let strange = || format!("{}: {path} says what this version doesn't understand", self.control.control);
        serde_json::from_str(&plain_json(&String::from_utf8_lossy(answer))).with_context(strange)
    }

    async fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Bytes> {
        let mut place = self.place()?;
        if method != Method::GET && self.control.token_file.is_none() {
            place = self.without_token(place).await;
        }
        self.call_at(place, method, path, body).await
    }

    /// The control socket of a node on this host: a change over TCP would take the token. `named` if that socket can't be found
    /// or used.
    async fn without_token(&self, named: Place) -> Place {
        let Place::Tcp(host) = &named else { return named };
        let asked = self.call_at(Place::Tcp(host.clone()), Method::GET, "/v1/status", None).await;
        let node = |answer: Result<Bytes>| Some(serde_json::from_slice::<Status>(&answer.ok()?).ok()?.node);
        let Some(over_tcp) = node(asked) else { return named };
        let Some(socket) = over_tcp.listens.control_unix.as_ref().map(PathBuf::from) else { return named };
        let there = node(self.call_at(Place::Unix(socket.clone()), Method::GET, "/v1/status", None).await);
        // A node on another host may have a path that names another node's socket here.
        let is_same = |n: &NodeStatus| n.pid == over_tcp.pid && n.listens.control_http == over_tcp.listens.control_http;
        if there.is_some_and(|n| is_same(&n)) { Place::Unix(socket) } else { named }
    }

    async fn call_at(&self, place: Place, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Bytes> {
        let mut request = Request::builder().method(method).uri(path).header(header::USER_AGENT, "plimsoll");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(file) = &self.control.token_file {
            let token = Token::load(file)?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.as_str()));
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        match place {
            Place::Unix(path) => {
                let stream = self.connect(tokio::net::UnixStream::connect(&path)).await?;
                self.exchange(stream, request.header(header::HOST, "localhost").body(body)?).await
            }
            Place::Tcp(host) => {
                let stream = self.connect(tokio::net::TcpStream::connect(&host)).await?;
                self.exchange(stream, request.header(header::HOST, &host).body(body)?).await
            }
        }
    }

    async fn connect<S>(&self, connecting: impl Future<Output = std::io::Result<S>>) -> Result<S> {
        let connected = tokio::time::timeout(CONNECT_TIME, connecting).await;
        connected.map_err(|_| self.silent("it doesn't take connections"))?.map_err(|e| {
            self.silent(&format!(
                "{e}: is the node running, and is this its control socket? (--control, PLIMSOLL_CONTROL)"
            ))
        })
    }

    async fn exchange<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<Bytes>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let broken = |e: hyper::Error| self.silent(&format!("the connection broke: {e}"));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let driver = tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|e| self.silent(&format!("the answer broke off: {e}")))?.to_bytes();
        driver.abort();
        if status.is_success() {
            return Ok(body);
        }
        match serde_json::from_str::<ErrorBody>(&plain_json(&String::from_utf8_lossy(&body))) {
            Ok(_) if status == StatusCode::UNAUTHORIZED && self.control.token_file.is_none() => bail!(
                "{}: this takes the node's token over TCP: name its file with --token-file, or use the node's control \
                 socket in place of its address",
                self.control.control
            ),
            Ok(ErrorBody { error }) => {
                let place = error.at.map_or(String::new(), |p| format!("{p}: "));
                let todo = error.todo.map_or(String::new(), |t| format!(": {t}"));
                bail!("{place}{}{todo}", error.what)
            }
            Err(_) => Err(self.failed(&format!("answers {status}, and doesn't say why: is this a Plimsoll node?"))),
        }
    }

    fn failed(&self, what: &str) -> anyhow::Error {
        anyhow!("{}: {what}", self.control.control)
    }

    fn silent(&self, what: &str) -> anyhow::Error {
        anyhow::Error::new(Silent(format!("{}: {what}", self.control.control)))
    }

    fn place(&self) -> Result<Place> {
        let text = &self.control.control;
        if text.starts_with("https://") {
            bail!("{text}: the control API has no TLS: use http://, on a loopback address");
        }
        let is_port = |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let plain = Some(text.as_str()).filter(|t| is_port(t) && !t.contains('/') && !Path::new(t).exists());
        if let Some(rest) = text.strip_prefix("http://").or(plain) {
            let host = rest.trim_end_matches('/');
            if !is_port(host) || host.contains('/') {
                bail!("{text}: not an address of a control API: write http://HOST:PORT");
            }
            return Ok(Place::Tcp(host.to_string()));
        }
        Ok(Place::Unix(Path::new(text).to_path_buf()))
    }
}

enum Place {
    Unix(PathBuf),
    Tcp(String),
}

/// A character, or U+FFFD for one that a terminal acts on: all control characters but the end of a line and the tab, and those that turn the
/// direction of writing. A node has none of them in names and messages; whoever answers in its place may.
fn plain(c: char) -> char {
    let is_obeyed = match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    };
    if is_obeyed { char::REPLACEMENT_CHARACTER } else { c }
}

/// A JSON document in which all texts are plain ([`plain`]), whether their characters are written as they are or as escapes.
fn plain_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escape)) = rest.split_once('\\') {
        out.extend(before.chars().map(plain));
        let code = |hex: &str| u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
        let first = escape.chars().next();
        // The escape's bytes after the backslash, and the character that it stands for, if that could be obeyed.
        let (length, meant) = match first {
            Some('u') => escape.get(1..5).map_or((1, None), |hex| (5, code(hex))),
            Some('b' | 'f' | 'r') => (1, Some('\r')),
            other => (other.map_or(0, char::len_utf8), None),
        };
        if meant.is_some_and(|c| plain(c) != c) {
            out.push_str("\\ufffd");
        } else {
            out.push('\\');
            out.push_str(&escape[..length]);
        }
        rest = &escape[length..];
    }
    out.extend(rest.chars().map(plain));
    out
}

/// `name` as one segment of a URL's path.
pub fn segment(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escapes as they are, as JSON's, and an escaped backslash before what only looks like one.
    #[test]
    fn a_terminal_obeys_nothing_that_comes_from_a_node() {
        let said = "{\"a\":\"x\\u001b]0;y\\u0007\\r\\u009b2J\u{9b}\u{202e}\\u202E\\n\\t\\\\u001b\\\"\u{e9}\"}";
        let read: serde_json::Value = serde_json::from_str(&plain_json(said)).unwrap();
        let plain = "x\u{fffd}]0;y\u{fffd}\u{fffd}\u{fffd}2J\u{fffd}\u{fffd}\u{fffd}\n\t\\u001b\"\u{e9}";
        assert_eq!(read["a"], plain);
        // What is cut off or no JSON stays so, and nothing panics.
        for odd in ["\\", "\"\\u00", "\\u12\u{e9}4", "\\\u{e9}"] {
            assert!(serde_json::from_str::<serde_json::Value>(&plain_json(odd)).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn names_are_one_segment() {
        assert_eq!(segment("web-1.a_b~"), "web-1.a_b~");
        assert_eq!(segment("a/b c%é"), "a%2Fb%20c%25%C3%A9");
    }

    #[test]
    fn where_a_node_is() {
        let place = |text: &str| {
            let control = Control { control: text.into(), token_file: None, json: false };
            Client::new(&control).unwrap().place()
        };
        assert!(matches!(place("http://127.0.0.1:7700/"), Ok(Place::Tcp(h)) if h == "127.0.0.1:7700"));
        assert!(matches!(place("http://[::1]:1"), Ok(Place::Tcp(h)) if h == "[::1]:1"));
        assert!(matches!(place("127.0.0.1:7711"), Ok(Place::Tcp(h)) if h == "127.0.0.1:7711"));
        assert!(matches!(place("control.sock"), Ok(Place::Unix(_))));
        assert!(matches!(place("/run/c.sock"), Ok(Place::Unix(p)) if p == Path::new("/run/c.sock")));
        for bad in ["https://a:1", "http://a", "http://a:x", "http://a:1/v1"] {
            assert!(place(bad).is_err(), "{bad}");
        }
    }
}
