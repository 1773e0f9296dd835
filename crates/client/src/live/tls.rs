//! TLS to a node. As at the node's own end, a socket pair carries the plain bytes: a task encrypts them beside the connection.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncWriteExt, BufReader, copy_buf, split};
use tokio::net::{TcpStream, UnixStream};
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

impl Keys {
    /// Reads the files of `folder`, anew for each connection: certificates are replaced while clients run. `host` has a port.
    ///
    /// # Errors
    /// The file that can't be used, or a host that no certificate can be for.
    pub async fn read(host: &str, folder: PathBuf) -> io::Result<Keys> {
        let bare = host.rsplit_once(':').map_or(host, |(bare, _)| bare).trim_matches(['[', ']']);
        let name = ServerName::try_from(bare.to_string()).map_err(|e| io::Error::other(format!("{bare}: {e}")))?;
        let config = tokio::task::spawn_blocking(move || config(&folder)).await.map_err(io::Error::other)??;
        Ok(Keys { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Agrees with the server on keys.
    pub async fn handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await.map_err(failure)
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
    pub fn start(secure: TlsStream<TcpStream>) -> io::Result<(UnixStream, Carrier)> {
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
