//! Our own certificate authority and the server's certificate.
//!
//! The authority is made once and kept; the server's certificate is made at every start for the
//! address and names of that start, and lives in memory only.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::files::{self, FileError};

/// Years an authority or a certificate is good for.
const VALID_YEARS: i32 = 20;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// One of `ca.crt` and `ca.key` is missing or broken.
    #[error(
        "the certificate authority in {dir:?} is damaged ({why}): restore ca.crt and ca.key, or remove both to have new ones made (clients then need the new kubeconfig)"
    )]
    Damaged {
        /// Directory of `ca.crt` and `ca.key`.
        dir: std::path::PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A certificate could not be made.
    #[error("make a certificate for {names:?}")]
    Make {
        /// The names asked for.
        names: Vec<String>,
        /// Error of the certificate library.
        #[source]
        source: rcgen::Error,
    },
    /// The TLS library refuses the certificate.
    #[error("use the certificate")]
    Tls(#[source] rustls::Error),
}

/// What the listener and the kubeconfig need.
#[derive(Debug, Clone)]
pub struct Identity {
    /// TLS settings of the server.
    pub tls: Arc<rustls::ServerConfig>,
    /// The authority's certificate, for clients.
    pub ca_pem: String,
}

/// Loads or makes the authority in `dir` and makes a server certificate for `addresses` and
/// `names`.
///
/// # Errors
/// See [`PkiError`].
pub fn identity(dir: &Path, addresses: &[IpAddr], names: &[String]) -> Result<Identity, PkiError> {
    files::make_private_dir(dir)?;
    let (ca_pem, ca_key) = authority(dir)?;
    let mut wanted: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    wanted.extend(names.iter().cloned());
    let make = |source| PkiError::Make {
        names: wanted.clone(),
        source,
    };
    let issuer = Issuer::new(ca_params(), ca_key);
    let key = KeyPair::generate().map_err(make)?;
    let mut params = CertificateParams::new(names.to_vec()).map_err(make)?;
    params
        .subject_alt_names
        .extend(addresses.iter().copied().map(SanType::IpAddress));
    params
        .distinguished_name
        .push(DnType::CommonName, "bellows-apiserver");
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params);
    let certificate = params.signed_by(&key, &issuer).map_err(make)?;
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(PkiError::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)
        .map_err(PkiError::Tls)?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Identity {
        tls: Arc::new(tls),
        ca_pem,
    })
}

fn authority(dir: &Path) -> Result<(String, KeyPair), PkiError> {
    let (cert_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
    let damaged = |why: String| PkiError::Damaged {
        dir: dir.to_owned(),
        why,
    };
    match (
        files::read_if_there(&cert_path)?,
        files::read_if_there(&key_path)?,
    ) {
        (Some(cert), Some(key)) => {
            let key =
                KeyPair::from_pem(&key).map_err(|error| damaged(format!("ca.key: {error}")))?;
            if !cert.contains("BEGIN CERTIFICATE") {
                return Err(damaged("ca.crt holds no certificate".to_owned()));
            }
            Ok((cert, key))
        }
        (None, None) => {
            let make = |source| PkiError::Make {
                names: vec!["bellows-ca".to_owned()],
                source,
            };
            let key = KeyPair::generate().map_err(make)?;
            let cert = ca_params().self_signed(&key).map_err(make)?.pem();
            files::write_private(&key_path, &key.serialize_pem())?;
            files::write_private(&cert_path, &cert)?;
            Ok((cert, key))
        }
        (Some(_), None) => Err(damaged("ca.key is missing".to_owned())),
        // The key is written first: a crash in between leaves it alone, and it has signed nothing
        // yet.
        (None, Some(_)) => Err(damaged("ca.crt is missing".to_owned())),
    }
}

/// The same name and uses every time, so that the authority can sign again after a restart.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "bellows-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params);
    params
}

fn set_validity(params: &mut CertificateParams) {
    let text = super::now().to_string();
    let year = text
        .get(..4)
        .and_then(|year| year.parse().ok())
        .unwrap_or(2026);
    // A year back, so that a guest or client whose clock is behind accepts it too.
    params.not_before = rcgen::date_time_ymd(year - 1, 1, 1);
    params.not_after = rcgen::date_time_ymd(year + VALID_YEARS, 1, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_is_kept_over_starts() {
        let dir = tempfile::tempdir().expect("dir");
        let here = [IpAddr::from([127, 0, 0, 1])];
        let first = identity(dir.path(), &here, &[]).expect("made");
        let second = identity(dir.path(), &here, &["localhost".to_owned()]).expect("loaded");
        assert_eq!(first.ca_pem, second.ca_pem);
    }

    #[test]
    fn a_damaged_authority_is_named() {
        let dir = tempfile::tempdir().expect("dir");
        identity(dir.path(), &[], &["localhost".to_owned()]).expect("made");
        std::fs::write(dir.path().join("ca.key"), "junk").expect("damaged");
        assert!(matches!(
            identity(dir.path(), &[], &[]),
            Err(PkiError::Damaged { .. })
        ));
        std::fs::remove_file(dir.path().join("ca.key")).expect("removed");
        assert!(matches!(
            identity(dir.path(), &[], &[]),
            Err(PkiError::Damaged { .. })
        ));
    }
}
