//! TLS by certificates, keys and authorities in PEM form. Files may be replaced at any time
//! ([`crate::reload`]), and that of a key must be private ([`crate::secret`]). [`trusting`] and
//! [`showing`] take content that the caller has read.
//!
//! Only TLS 1.3, with `ring`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};

use crate::reload::{Files, Reloaded};
use crate::secret::{self, SecretError};

/// Longest file in bytes. A chain of a few certificates has a tenth of it.
const FILE_LIMIT_BYTES: u64 = 256 * 1024;

/// Errors of files for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or other users may read the key.
    #[error(transparent)]
    File(#[from] SecretError),
    /// A file lacks its PEM content.
    #[error("{} holds no {what} in PEM form", .path.display())]
    Pem {
        /// Path of the file without that content.
        path: PathBuf,
        /// Kind of the missing content.
        what: &'static str,
        /// Error of the PEM parser.
        #[source]
        source: PemError,
    },
    /// Certificate and key do not belong together, or cannot be used for TLS.
    #[error("certificate, key or authority cannot be used")]
    Identity(#[source] rustls::Error),
    /// The authority of clients cannot be used.
    #[error("the clients' authority cannot be used")]
    Authority(#[source] VerifierBuilderError),
}

/// Paths of a certificate chain and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// Path of the certificate chain, in PEM form.
    pub cert: PathBuf,
    /// Path of the key in PEM form, mode 0600 or 0400.
    pub key: PathBuf,
}

/// Files of a TLS client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// Path of the authority that must have signed the server's certificate.
    pub authority: PathBuf,
    /// Certificate for a server that requests one.
    pub identity: Option<IdentityFiles>,
}

impl Files for ClientFiles {
    const WHAT: &'static str = "certificates";
    type Content = Arc<ClientConfig>;
    type Error = TlsError;

    fn paths(&self) -> Vec<&Path> {
        let identity = self.identity.iter().flat_map(|own| [&own.cert, &own.key]);
        let authority = std::iter::once(&self.authority);
        authority.chain(identity).map(PathBuf::as_path).collect()
    }

    fn read(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let builder = client(authorities(&self.authority)?).map_err(TlsError::Identity)?;
        let config = match &self.identity {
            Some(own) => builder
                .with_client_auth_cert(certificates(&own.cert)?, key(&own.key)?)
                .map_err(TlsError::Identity)?,
            None => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }
}

/// Files of a TLS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate and key of the server.
    pub identity: IdentityFiles,
    /// Path of the authority that must have signed a client's certificate. A client without a
    /// certificate completes the handshake, so that it can get an error message; the server must
    /// check.
    pub client_authority: Option<PathBuf>,
}

impl Files for ServerFiles {
    const WHAT: &'static str = "certificates";
    type Content = Arc<ServerConfig>;
    type Error = TlsError;

    fn paths(&self) -> Vec<&Path> {
        let IdentityFiles { cert, key } = &self.identity;
        let authority = self.client_authority.iter();
        let all = [cert, key].into_iter().chain(authority);
        all.map(PathBuf::as_path).collect()
    }

    fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let builder = server().map_err(TlsError::Identity)?;
        let builder = match &self.client_authority {
            Some(path) => {
                let roots = Arc::new(authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.allow_unauthenticated().build();
                builder.with_client_cert_verifier(verifier.map_err(TlsError::Authority)?)
            }
            None => builder.with_no_client_auth(),
        };
        let chain = certificates(&self.identity.cert)?;
        let config = builder.with_single_cert(chain, key(&self.identity.key)?);
        config.map(Arc::new).map_err(TlsError::Identity)
    }
}

/// TLS configuration of a server, with its files.
pub type Server = Reloaded<ServerFiles>;

/// Client configuration without a certificate of its own. It trusts certificates that `pem` has
/// signed, and `pem` itself.
///
/// # Errors
/// `pem` is not a certificate in PEM form.
pub fn trusting(pem: &[u8]) -> Result<Arc<ClientConfig>, PemUnusable> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem)?)?;
    Ok(Arc::new(client(roots)?.with_no_client_auth()))
}

/// Server configuration that requests no client certificate.
///
/// # Errors
/// Either text is not in PEM form, or they do not belong together.
pub fn showing(cert: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, PemUnusable> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let config = server()?.with_no_client_auth();
    Ok(Arc::new(config.with_single_cert(chain?, key)?))
}

/// Errors of a certificate or its key.
#[derive(Debug, thiserror::Error)]
pub enum PemUnusable {
    /// The text is not in PEM form.
    #[error("not in PEM form")]
    Pem(#[from] PemError),
    /// The certificate is not valid, or does not belong to its key.
    #[error("the certificate is not valid or does not belong to its key")]
    Certificate(#[from] rustls::Error),
}

type TrustingBuilder = ConfigBuilder<ClientConfig, WantsClientCert>;

fn client(roots: RootCertStore) -> Result<TrustingBuilder, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13])?;
    Ok(builder.with_root_certificates(roots))
}

fn server() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider());
    builder.with_protocol_versions(&[&rustls::version::TLS13])
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(TlsError::Identity)?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |source| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        source,
    };
    let (_, text) = secret::read_public(path, FILE_LIMIT_BYTES)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(bad)?;
    if found.is_empty() {
        return Err(bad(PemError::NoItemsFound));
    }
    Ok(found)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = secret::read(path, FILE_LIMIT_BYTES)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        what: "private key",
        source,
    })
}
