//! Certificates for tests of TLS: an authority per test, the certificates that it signs, and their
//! files. Files are replaced as a deployed key is, atomically and with a restrictive mode. Also a
//! signer of images. A dev-dependency only.

#![allow(
    clippy::expect_used,
    reason = "a test that cannot make its certificates ends there"
)]

mod images;

pub use images::ImageSigner;

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer,
    KeyPair, SanType,
};

/// Years in which a certificate is good that is good now, first and last.
pub const NOW: (i32, i32) = (2000, 4000);
/// Years of one that has expired.
pub const PAST: (i32, i32) = (2000, 2001);

/// The name a certificate is for.
#[derive(Debug, Clone)]
pub struct Name(SanType);

impl From<&str> for Name {
    /// A DNS name.
    ///
    /// # Panics
    ///
    /// If it is not ASCII.
    fn from(host: &str) -> Self {
        Self(SanType::DnsName(host.try_into().expect("a name")))
    }
}

impl From<IpAddr> for Name {
    fn from(address: IpAddr) -> Self {
        Self(SanType::IpAddress(address))
    }
}

/// Certificate authority of a test, with a fresh key.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Certificate of the authority, PEM. Peers trust it.
    pub pem: String,
}

impl Authority {
    /// A new one, of that common name.
    ///
    /// # Panics
    /// When there is no randomness for a key.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// A certificate for this name that is good now, with its key.
    #[must_use]
    pub fn signs(&self, name: impl Into<Name>) -> Identity {
        self.signs_for(name, NOW)
    }

    /// A certificate for this name that is good in these years, with its key.
    ///
    /// # Panics
    /// When there is no randomness for a key.
    #[must_use]
    pub fn signs_for(&self, name: impl Into<Name>, (from, until): (i32, i32)) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name.into().0];
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let cert = params.signed_by(&key, &self.issuer).expect("signed");
        Identity {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }

    /// The certificate (PEM) for a request (PKCS #10, PEM), valid between the two times.
    ///
    /// # Panics
    ///
    /// If the request is malformed.
    #[must_use]
    pub fn grants(&self, request: &str, (from, until): (SystemTime, SystemTime)) -> String {
        let mut asked = CertificateSigningRequestParams::from_pem(request).expect("a request");
        asked.params.not_before = from.into();
        asked.params.not_after = until.into();
        asked.signed_by(&self.issuer).expect("signed").pem()
    }
}

/// A certificate and its key, PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Certificate for the requested name, PEM.
    pub cert: String,
    /// Private key, PEM.
    pub key: String,
}

impl Identity {
    /// Writes both to `who.crt` and `who.key` in a folder, and returns their paths.
    ///
    /// # Panics
    ///
    /// If a file cannot be written.
    pub fn put(&self, folder: &Path, who: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = (
            folder.join(format!("{who}.crt")),
            folder.join(format!("{who}.key")),
        );
        put(&cert, &self.cert);
        put(&key, &self.key);
        (cert, key)
    }
}

/// Puts a file in place at once, for its owner only.
///
/// # Panics
/// When it cannot be written.
pub fn put(path: &Path, text: &str) {
    put_with(path, text, 0o600);
}

/// Puts a file in place at once, with this mode.
///
/// # Panics
/// When it cannot be written.
pub fn put_with(path: &Path, text: &str, mode: u32) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).expect("written");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&next, mode).expect("set");
    std::fs::rename(next, path).expect("renamed");
}
