//! TLS to a node. As at the node's own end, a socket pair carries the plain bytes: a task encrypts them beside the connection.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf, copy_buf, split};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Names of the files in a folder of certificates, as other NBD clients have them.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// Certificates for a connection, and the name that the node's must have.
pub struct Keys {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// The read of a folder of certificates that is under way, if any. Those who wait for it need no thread. A folder on a server that is gone is
/// read for ever: each try to connect would keep a thread of its own.
#[derive(Clone, Debug, Default)]
pub struct Reading(Arc<Mutex<()>>);

impl Keys {
    /// Reads the files of `folder`, anew for each connection: certificates are replaced while clients run. `host` has a port. Waits until
    /// no other is `reading`.
    ///
    /// # Errors
    /// The file that can't be used, or a host that no certificate can be for.
    pub async fn read(host: &str, folder: PathBuf, reading: &Reading) -> io::Result<Keys> {
        let bare = host.rsplit_once(':').map_or(host, |(bare, _)| bare).trim_matches(['[', ']']);
        let name = ServerName::try_from(bare.to_string()).map_err(|e| io::Error::other(format!("{bare}: {e}")))?;
        let held = reading.0.clone().lock_owned().await;
        let read = move || {
            let _held = held; // also if nobody waits any more
            config(&folder)
        };
        let config = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        Ok(Keys { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Agrees with the server on keys.
    pub async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<Quiet>> {
        self.connector.connect(self.name.clone(), Quiet(stream)).await.map_err(failure)
    }
}

fn failure(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("TLS: {e}"))
}

fn config(folder: &Path) -> io::Result<ClientConfig> {
    let wrong = |file: &str, e: &dyn fmt::Display| {
        let all = format!("{AUTHORITY}, {CERTIFICATE} and {KEY}");
        io::Error::other(format!("{}: {e}: tls-certificates is a folder with {all}", folder.join(file).display()))
    };
    let certificates = |file: &str| -> io::Result<Vec<CertificateDer<'static>>> {
        let read = CertificateDer::pem_file_iter(folder.join(file)).map_err(|e| wrong(file, &e))?;
        let all: Vec<_> = read.collect::<Result<_, _>>().map_err(|e| wrong(file, &e))?;
        if all.is_empty() { Err(wrong(file, &"no certificate in it")) } else { Ok(all) }
    };
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(AUTHORITY)? {
        authorities.add(certificate).map_err(|e| wrong(AUTHORITY, &e))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(authorities);
    // A node where TLS is a choice asks for no certificate.
    if !folder.join(CERTIFICATE).try_exists().map_err(|e| wrong(CERTIFICATE, &e))? {
        return Ok(builder.with_no_client_auth());
    }
    let key = PrivateKeyDer::from_pem_file(folder.join(KEY)).map_err(|e| wrong(KEY, &e))?;
    builder.with_client_auth_cert(certificates(CERTIFICATE)?, key).map_err(|e| wrong(CERTIFICATE, &e))
}

/// A TCP socket without vectored writes. Those are writev(2), which raises SIGPIPE where the peer has closed the connection, and that ends
/// a C program; plain writes are send(2) with MSG_NOSIGNAL.
#[derive(Debug)]
pub struct Quiet(TcpStream);

impl AsyncRead for Quiet {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Quiet {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Most bytes that the carrier takes at once.
const CARRIED_BYTES: usize = 256 << 10;

fn buffered<R: AsyncRead>(from: R) -> BufReader<R> {
    BufReader::with_capacity(CARRIED_BYTES, from)
}

/// The task of a connection that carries bytes between its socket pair and the node.
#[derive(Debug)]
pub struct Carrier {
    task: JoinHandle<()>,
    /// The error by which the encrypted side ended: the plain side only sees an end.
    failed: Arc<OnceLock<(io::ErrorKind, String)>>,
}

impl Carrier {
    /// Starts it; also returns the pair's end for plain bytes.
    pub fn start(secure: TlsStream<Quiet>) -> io::Result<(UnixStream, Carrier)> {
        let (near, far) = UnixStream::pair()?;
        let failed = Arc::new(OnceLock::new());
        let record = failed.clone();
        let task = tokio::spawn(async move {
            let ((mut from_node, mut to_node), (mut from_client, mut to_client)) = (split(secure), far.into_split());
            let up = async {
                copy_buf(&mut buffered(&mut from_client), &mut to_node).await?;
                to_node.shutdown().await
            };
            let mut from_node = buffered(&mut from_node);
            let mut down = pin!(copy_buf(&mut from_node, &mut to_client));
            let ended = tokio::select! {
                up = up => match up {
                    Ok(()) => Ok(()),
                    // A node that refuses a certificate says so, and closes: its word is the reason, not the failed write.
                    Err(e) => down.await.and(Err(e)),
                },
                down = &mut down => down.map(drop),
            };
            if let Err(e) = ended {
                let _ = record.set((e.kind(), failure(e).to_string())); // only this task sets it
            }
        });
        Ok((near, Carrier { task, failed }))
    }

    /// The error by which the connection ended, if it was one.
    pub fn failed(&self) -> Option<io::Error> {
        self.failed.get().map(|(kind, what)| io::Error::new(*kind, what.clone()))
    }

    /// Waits until the task has ended: the near end must have been dropped.
    pub async fn ended(mut self) {
        let _ = (&mut self.task).await; // it fails only if the runtime ends
    }
}

impl Drop for Carrier {
    /// Ends the connection even if the node takes nothing more: what it was sent may wait for ever.
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A vectored write raises SIGPIPE where the node has closed the connection.
    #[tokio::test]
    async fn an_encrypted_connection_has_no_vectored_writes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(stream.is_write_vectored(), "the socket itself has them");
        assert!(!Quiet(stream).is_write_vectored());
    }

    #[test]
    fn certificates_that_cant_be_read_keep_one_thread() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(dir.path().join(AUTHORITY)).status().unwrap();
        assert!(made.success());
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build().unwrap();
        let free = runtime.block_on(async {
            let reading = Reading::default();
            for _ in 0..3 {
                let read = Keys::read("localhost:1", dir.path().to_owned(), &reading);
                assert!(tokio::time::timeout(Duration::from_millis(5), read).await.is_err(), "it hangs");
            }
            let other = tokio::task::spawn_blocking(|| ());
            tokio::time::timeout(Duration::from_secs(20), other).await.is_ok()
        });
        runtime.shutdown_background(); // a drop would wait for the folder
        assert!(free, "a thread is left");
    }
}
