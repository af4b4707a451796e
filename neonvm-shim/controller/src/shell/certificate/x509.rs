//! Keys, requests and certificates in their encodings.

use p256::SecretKey;
use p256::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _, LineEnding};
use protocol::time::WallTime;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use ssh_key::rand_core::OsRng;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::X509Name;

use crate::core::certificate::{Certificate, PublicKey};

/// A key, request or certificate that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text is no key on the curve P-256.
    #[error("the temporary secret holds no P-256 key")]
    Key,
    /// The key could not be encoded.
    #[error("failed to encode the key")]
    Encode,
    /// The request could not be made.
    #[error("failed to make the certificate request")]
    Request(#[source] rcgen::Error),
}

/// A new key on the curve P-256, in the traditional encoding (SEC 1), PEM.
pub(super) fn new_key() -> Result<String, CertificateError> {
    let key = SecretKey::random(&mut OsRng);
    let pem = key
        .to_sec1_pem(LineEnding::LF)
        .map_err(|_| CertificateError::Encode)?;
    Ok(pem.to_string())
}

fn secret_key(pem: &[u8]) -> Option<SecretKey> {
    SecretKey::from_sec1_pem(std::str::from_utf8(pem).ok()?.trim_ascii()).ok()
}

/// The public key of such a key.
pub(super) fn public_key(pem: &[u8]) -> Option<PublicKey> {
    let der = secret_key(pem)?.public_key().to_public_key_der().ok()?;
    Some(PublicKey(der.as_bytes().to_vec()))
}

/// A request for a certificate for this key, with this common name and only DNS name, PEM.
pub(super) fn request(key: &[u8], name: &str) -> Result<String, CertificateError> {
    let key = secret_key(key).ok_or(CertificateError::Key)?;
    let der = key.to_pkcs8_der().map_err(|_| CertificateError::Encode)?;
    let key = KeyPair::try_from(der.as_bytes()).map_err(CertificateError::Request)?;
    let mut params =
        CertificateParams::new([name.to_owned()]).map_err(CertificateError::Request)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let made = params
        .serialize_request(&key)
        .and_then(|request| request.pem());
    made.map_err(CertificateError::Request)
}

/// Reads the first certificate of a chain, PEM.
pub(super) fn certificate(pem: &[u8]) -> Result<Certificate, String> {
    let block = block(pem, "CERTIFICATE")?;
    let parsed = block.parse_x509().map_err(|error| error.to_string())?;
    let mut names = common_names(parsed.subject());
    for extension in parsed.extensions() {
        dns_names(extension.parsed_extension(), &mut names);
    }
    let micros = |seconds: i64| WallTime(seconds.saturating_mul(1_000_000));
    Ok(Certificate {
        not_before: micros(parsed.validity().not_before.timestamp()),
        not_after: micros(parsed.validity().not_after.timestamp()),
        names,
        key: PublicKey(parsed.public_key().raw.to_vec()),
    })
}

/// Reads the DNS name and the key of a request, PEM.
pub(super) fn subject(pem: &[u8]) -> Option<(String, PublicKey)> {
    let block = block(pem, "CERTIFICATE REQUEST").ok()?;
    let (_, parsed) = X509CertificationRequest::from_der(&block.contents).ok()?;
    let info = &parsed.certification_request_info;
    let mut names = common_names(&info.subject);
    for extension in parsed.requested_extensions().into_iter().flatten() {
        dns_names(extension, &mut names);
    }
    let name = names.first()?.clone();
    // A request for more than one name is not ours.
    names.iter().all(|other| *other == name).then(|| {
        let key = PublicKey(info.subject_pki.raw.to_vec());
        (name, key)
    })
}

fn block(pem: &[u8], label: &str) -> Result<Pem, String> {
    match Pem::iter_from_buffer(pem).next() {
        Some(Ok(block)) if block.label == label => Ok(block),
        Some(Ok(block)) => Err(format!("it is a {}", block.label)),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("there is none".into()),
    }
}

fn common_names(name: &X509Name<'_>) -> Vec<String> {
    let all = name
        .iter_common_name()
        .filter_map(|name| name.as_str().ok());
    all.map(str::to_owned).collect()
}

fn dns_names(extension: &ParsedExtension<'_>, into: &mut Vec<String>) {
    if let ParsedExtension::SubjectAlternativeName(names) = extension {
        for name in &names.general_names {
            if let GeneralName::DNSName(name) = name {
                into.push((*name).to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateSigningRequestParams, Issuer};

    fn signed(request: &str) -> String {
        let key = KeyPair::generate().expect("a key");
        let issuer = Issuer::new(CertificateParams::default(), key);
        let mut params = CertificateSigningRequestParams::from_pem(request).expect("a request");
        params.params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.params.not_after = rcgen::date_time_ymd(2026, 1, 2);
        params.signed_by(&issuer).expect("signs").pem()
    }

    #[test]
    fn key_request_and_certificate_belong_together() {
        let (key, other) = (new_key().expect("a key"), new_key().expect("a key"));
        assert!(key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "SEC 1");
        assert_ne!(key, other);
        let public = public_key(key.as_bytes()).expect("a key");
        assert_ne!(Some(&public), public_key(other.as_bytes()).as_ref());
        let request = request(key.as_bytes(), "vm.neon.local").expect("a request");
        let found = subject(request.as_bytes()).expect("one name and one key");
        assert_eq!(found, ("vm.neon.local".to_owned(), public.clone()));
        let found = certificate(signed(&request).as_bytes()).expect("a certificate");
        assert_eq!(found.key, public);
        assert!(found.names.iter().any(|name| name == "vm.neon.local"));
        let day = WallTime::parse("2026-01-01T00:00:00Z").expect("a time");
        assert_eq!(found.not_before, day);
        assert_eq!(found.not_after.0 - found.not_before.0, 86_400_000_000);
    }

    #[test]
    fn malformed_input_is_error() {
        let key = new_key().expect("a key");
        for text in ["", "hello", "-----BEGIN CERTIFICATE-----\n", key.as_str()] {
            assert!(certificate(text.as_bytes()).is_err(), "{text}");
            assert_eq!(subject(text.as_bytes()), None, "{text}");
        }
        for text in ["", "hello", "-----BEGIN EC PRIVATE KEY-----\nAAAA\n"] {
            assert_eq!(public_key(text.as_bytes()), None, "{text}");
            let refused = request(text.as_bytes(), "x").expect_err("no key");
            assert!(matches!(refused, CertificateError::Key));
        }
        assert_eq!(public_key(&[0xff, 0xfe]), None);
        let two = CertificateParams::new(["a.local".to_owned(), "b.local".to_owned()]);
        let pair = KeyPair::generate().expect("a key");
        let two = two.expect("names").serialize_request(&pair).expect("made");
        assert_eq!(subject(two.pem().expect("text").as_bytes()), None);
    }
}
