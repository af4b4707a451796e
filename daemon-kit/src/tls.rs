//! TLS by certificates, keys and authorities in PEM form. Where they are files, these may be
//! replaced at any time, and a key's must be its owner's alone ([`crate::secret`]); [`trusting`]
//! and [`showing`] take what somebody else has read.
//!
//! Only TLS 1.3, with `ring`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};

use crate::secret::{self, SecretError};

/// Most that is read of one file, bytes. A chain of a few certificates has a tenth of it.
const FILE_LIMIT_BYTES: u64 = 256 * 1024;

/// Why files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One cannot be read, or a key's is open to others.
    #[error(transparent)]
    File(#[from] SecretError),
    /// One does not hold what it should.
    #[error("{} holds no {what} in PEM form", .path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// Why it does not.
        #[source]
        source: PemError,
    },
    /// They do not go together, or not with TLS.
    #[error("certificate, key or authority cannot be used")]
    Identity(#[source] rustls::Error),
    /// The authority of clients cannot be used.
    #[error("the clients' authority cannot be used")]
    Authority(#[source] VerifierBuilderError),
}

/// How files look: inode, size and time of change of each. Equal as long as nobody replaced or
/// wrote to one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp(Vec<Option<(u64, u64, i64, i64)>>);

impl Stamp {
    /// As they look now. Take it before they are read: a change in between is then seen as one.
    #[must_use]
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let look = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            // The time of a change of mode or content, which nobody can set back.
            Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
        };
        Self(paths.into_iter().map(look).collect())
    }

    /// Whether all of them are there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }
}

/// A certificate, with those it was signed by, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificates.
    pub cert: PathBuf,
    /// The key, mode 0600 or 0400.
    pub key: PathBuf,
}

/// What one who connects shows and trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// Who must have signed the server's certificate.
    pub authority: PathBuf,
    /// What is shown to a server that asks for it.
    pub identity: Option<IdentityFiles>,
}

impl ClientFiles {
    /// How the files look.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let identity = self.identity.iter().flat_map(|own| [&own.cert, &own.key]);
        Stamp::of(
            [&self.authority]
                .into_iter()
                .chain(identity)
                .map(PathBuf::as_path),
        )
    }

    /// By the files as they are now.
    ///
    /// # Errors
    /// [`TlsError`], about the first thing that is wrong.
    pub fn read(&self) -> Result<Arc<ClientConfig>, TlsError> {
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

/// What a server shows, and whom it lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// What it shows.
    pub identity: IdentityFiles,
    /// Who must have signed the certificate of a client that shows one. A client that shows none
    /// gets through the handshake, so that it can be told what is wrong in words; whoever serves it
    /// must look.
    pub client_authority: Option<PathBuf>,
}

impl ServerFiles {
    fn stamp(&self) -> Stamp {
        let IdentityFiles { cert, key } = &self.identity;
        let authority = self.client_authority.iter();
        Stamp::of(
            [cert, key]
                .into_iter()
                .chain(authority)
                .map(PathBuf::as_path),
        )
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

/// A server's side of TLS, as its files have it.
#[derive(Debug)]
pub struct Server {
    files: ServerFiles,
    stamp: Stamp,
    config: Arc<ServerConfig>,
}

impl Server {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`], about the first thing that is wrong.
    pub fn load(files: ServerFiles) -> Result<Self, TlsError> {
        let stamp = files.stamp();
        let config = files.read()?;
        Ok(Self {
            files,
            stamp,
            config,
        })
    }

    /// Whether clients are asked for a certificate.
    #[must_use]
    pub fn asks_clients(&self) -> bool {
        self.files.client_authority.is_some()
    }

    /// For the next connection.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Reads the files again if they have changed, and says whether what they hold is in use now.
    /// Files that cannot be used, such as a certificate whose key is yet to be written, leave in
    /// force what was.
    pub fn renew(&mut self) -> bool {
        let stamp = self.files.stamp();
        if stamp == self.stamp {
            return false;
        }
        self.stamp = stamp;
        match self.files.read() {
            Ok(config) => {
                tracing::info!("certificates have changed and are in use");
                self.config = config;
                true
            }
            Err(error) => {
                let error = crate::chain(&error);
                tracing::warn!(
                    error,
                    "certificates have changed and cannot be used: the ones before stay"
                );
                false
            }
        }
    }
}

/// The side of one who connects, shows nothing, and trusts what one certificate has signed; that
/// may be itself.
///
/// # Errors
/// When `pem` is no certificate in PEM form.
pub fn trusting(pem: &[u8]) -> Result<Arc<ClientConfig>, PemUnusable> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem)?)?;
    Ok(Arc::new(client(roots)?.with_no_client_auth()))
}

/// The side of one who shows a certificate and asks for none.
///
/// # Errors
/// When either is not in PEM form, or they do not belong together.
pub fn showing(cert: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, PemUnusable> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert).collect();
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let config = server()?.with_no_client_auth();
    Ok(Arc::new(config.with_single_cert(chain?, key)?))
}

/// Why a certificate, or its key, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemUnusable {
    /// It is not in PEM form.
    #[error("not in PEM form")]
    Pem(#[from] PemError),
    /// It is no certificate, or not that of its key.
    #[error("no certificate, or not that of its key")]
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
