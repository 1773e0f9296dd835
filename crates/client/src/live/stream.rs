//! A connection's socket, of either kind.

use super::address::Place;
use std::io;
use tokio::net::{TcpStream, UnixStream};

/// A socket whose bytes are taken and given without waiting.
#[derive(Debug)]
pub enum Stream {
    /// To a node on this machine.
    Unix(UnixStream),
    /// To any.
    Tcp(TcpStream),
}

impl Stream {
    /// Connects.
    pub async fn connect(place: &Place) -> io::Result<Stream> {
        match place {
            Place::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
            Place::Tcp(host) => {
                let stream = TcpStream::connect(host.as_str()).await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    /// Waits until there may be something to read.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Stream::Unix(s) => s.readable().await,
            Stream::Tcp(s) => s.readable().await,
        }
    }

    /// Waits until something may be written.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Stream::Unix(s) => s.writable().await,
            Stream::Tcp(s) => s.writable().await,
        }
    }

    /// Reads the bytes that are there now. `None`: there are none yet; 0: the end.
    pub fn read_now(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        nothing(match self {
            Stream::Unix(s) => s.try_read(into),
            Stream::Tcp(s) => s.try_read(into),
        })
    }

    /// Writes the bytes that the socket takes now. `None`: it takes none.
    pub fn write_now(&self, from: &[u8]) -> io::Result<Option<usize>> {
        nothing(match self {
            Stream::Unix(s) => s.try_write(from),
            Stream::Tcp(s) => s.try_write(from),
        })
    }
}

fn nothing(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}
