//! TLS for TCP clients: the server's certificate, and the names in clients' certificates.

use crate::config::{BadConfig, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// An acceptor that verifies clients against the configured authorities.
///
/// # Errors
/// The file that can't be used, and why.
pub fn acceptor(tls: &Tls) -> Result<TlsAcceptor, BadConfig> {
    let certificates = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|e| BadConfig::of_file(&tls.key, e))?;
    let mut authorities = RootCertStore::empty();
    for certificate in self::certificates(&tls.client_ca)? {
        authorities.add(certificate).map_err(|e| BadConfig::of_file(&tls.client_ca, e))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider.clone());
    let verifier = if tls.required { verifier } else { verifier.allow_unauthenticated() };
    let verifier = verifier.build().map_err(|e| BadConfig::of_file(&tls.client_ca, e))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| BadConfig::found(e).about("TLS"))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)
        .map_err(|e| BadConfig::found(e).about(format!("{} and {}", tls.certificate.display(), tls.key.display())))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, BadConfig> {
    let read = CertificateDer::pem_file_iter(file).map_err(|e| BadConfig::of_file(file, e))?;
    let all: Vec<_> = read.collect::<Result<_, _>>().map_err(|e| BadConfig::of_file(file, e))?;
    if all.is_empty() { Err(BadConfig::of_file(file, "no certificate in it")) } else { Ok(all) }
}

/// The subject's common name of a certificate that was verified.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_string())
}
