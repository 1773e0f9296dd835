//! A connection's socket, of any kind.

use super::address::Place;
use super::tls::{Carrier, Keys};
use std::io;
use tokio::net::{TcpStream, UnixStream};

/// A socket whose bytes are taken and given without waiting.
#[derive(Debug)]
pub enum Stream {
    /// To a node on this machine.
    Unix(UnixStream),
    /// To any.
    Tcp(TcpStream),
    /// The same over TLS: the near end of a socket pair, and the task that carries its bytes.
    Tls(UnixStream, Carrier),
}

impl Stream {
    /// Connects.
    pub async fn connect(place: &Place) -> io::Result<Stream> {
        match place {
            Place::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
            Place::Tcp(host) | Place::Tls { host, .. } => {
                let stream = TcpStream::connect(host.as_str()).await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Goes on over TLS: the server has agreed to it, and has sent nothing since.
    ///
    /// # Errors
    /// If the two don't trust each other, or the socket fails.
    pub async fn over_tls(self, keys: &Keys) -> io::Result<Stream> {
        match self {
            Stream::Tcp(stream) => Carrier::start(keys.handshake(stream).await?).map(|(s, c)| Stream::Tls(s, c)),
            _ => Err(io::Error::other("only a TCP connection goes over to TLS")),
        }
    }

    /// Ends it once all that was written is on its way.
    pub async fn close(self) {
        if let Stream::Tls(near, carrier) = self {
            drop(near); // the carrier sends what is left, and ends
            carrier.ended().await;
        }
    }

    /// Waits until there may be something to read.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Stream::Unix(s) | Stream::Tls(s, _) => s.readable().await,
            Stream::Tcp(s) => s.readable().await,
        }
    }

    /// Waits until something may be written.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Stream::Unix(s) | Stream::Tls(s, _) => s.writable().await,
            Stream::Tcp(s) => s.writable().await,
        }
    }

    /// Reads the bytes that are there now. `None`: there are none yet; 0: the end.
    pub fn read_now(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.named(nothing(match self {
            Stream::Unix(s) | Stream::Tls(s, _) => s.try_read(into),
            Stream::Tcp(s) => s.try_read(into),
        }))
    }

    /// Writes the bytes that the socket takes now. `None`: it takes none.
    pub fn write_now(&self, from: &[u8]) -> io::Result<Option<usize>> {
        self.named(nothing(match self {
            Stream::Unix(s) | Stream::Tls(s, _) => s.try_write(from),
            Stream::Tcp(s) => s.try_write(from),
        }))
    }

    /// The result, or the error of the encrypted side: of that the plain side only sees an end, or that nobody reads any more.
    fn named(&self, result: io::Result<Option<usize>>) -> io::Result<Option<usize>> {
        match (self, &result) {
            (Stream::Tls(_, carrier), Ok(Some(0)) | Err(_)) => carrier.failed().map_or(result, Err),
            _ => result,
        }
    }
}

fn nothing(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}
