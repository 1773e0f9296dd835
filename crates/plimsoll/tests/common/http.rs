//! A blocking HTTP client of a few lines, so that the API is also seen by something that isn't our own client.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A status code and a body.
pub struct Answer {
    pub code: u16,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The body of an answer that must have this code.
    pub fn expect(&self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Returns an error's text.
    pub fn error(&self, code: u16) -> String {
        self.expect(code)["error"]["what"].as_str().expect("every error says what").to_string()
    }
}

fn exchange(mut stream: impl Read + Write, method: &str, path: &str, headers: &str, body: Option<&Value>) -> Answer {
    sent(&mut stream, method, path, headers, body).unwrap()
}

fn sent(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &str,
    body: Option<&Value>,
) -> std::io::Result<Answer> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{kind}{headers}\r\n{body}"
    )?;
    let mut all = String::new();
    stream.read_to_string(&mut all)?;
    let (head, body) = all.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "bodies come whole: {head}");
    Ok(Answer { code, body: body.to_string() })
}

/// Over the control socket.
pub fn unix(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Answer {
    try_unix(socket, method, path, body).unwrap()
}

/// The same with a node that may be killed meanwhile.
pub fn try_unix(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<Answer> {
    sent(UnixStream::connect(socket)?, method, path, "", body)
}

/// Over TCP, with further headers (each with its line's end).
pub fn tcp(address: &str, method: &str, path: &str, headers: &str, body: Option<&Value>) -> Answer {
    exchange(TcpStream::connect(address).unwrap(), method, path, headers, body)
}
