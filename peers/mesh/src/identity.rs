//! The certificate of all machines that have one key.
//!
//! It follows from the key alone, so machines need no authority: each makes the same certificate,
//! and trusts it. Signatures of Ed25519 have no random part, and its dates are constant.

use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519, SerialNumber};
use rustls::{ClientConfig, ServerConfig};

/// Name in the certificate. Addresses of machines change, so none is in it.
pub(crate) const SERVER_NAME: &str = "peers.bellows.internal";
/// Begin of a private key in PKCS#8; 32 bytes follow.
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The certificate of a key cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The library refuses the key or the certificate.
    #[error("the certificate of the key cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS refuses the certificate.
    #[error("the certificate of the key cannot be used: {0}")]
    Tls(#[from] daemon_kit::tls::PemUnusable),
}

/// TLS settings of both sides.
pub(crate) struct Identity {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl Identity {
    pub(crate) fn new(seed: &[u8; 32]) -> Result<Self, IdentityError> {
        let (cert, key) = pem(seed)?;
        Ok(Self {
            server: daemon_kit::tls::showing(cert.as_bytes(), key.as_bytes())?,
            client: daemon_kit::tls::trusting(cert.as_bytes())?,
        })
    }
}

fn pem(seed: &[u8; 32]) -> Result<(String, String), IdentityError> {
    let der = [PKCS8_HEAD.as_slice(), seed].concat();
    let der = rustls::pki_types::PrivatePkcs8KeyDer::from(der);
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ED25519)?;
    let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
    params
        .distinguished_name
        .push(DnType::CommonName, "bellows-peers");
    params.serial_number = Some(SerialNumber::from(1_u64));
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2120, 1, 1);
    let cert = params.self_signed(&key)?;
    Ok((cert.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_follows_from_the_key_alone() {
        assert_eq!(pem(&[3; 32]).unwrap(), pem(&[3; 32]).unwrap());
        assert_ne!(pem(&[3; 32]).unwrap().0, pem(&[4; 32]).unwrap().0);
    }
}
