//! The webhook's certificate, in a secret that all replicas share.
//!
//! It is signed by an authority of its own, whose key is thrown away, and is renewed in time. API
//! servers that trust the last certificate trust it until its end: the bundle of a renewed secret
//! holds both. A secret of another owner is used until its end, and its owner renews it.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How long a certificate of ours is good for, and how long before its end it is renewed, days.
const VALID_DAYS: i64 = 365;
const RENEW_DAYS: i64 = 60;
/// Label of a secret that this controller may renew. A secret without it, for example
/// cert-manager's, is used as it is.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const US: &str = "neonvm-controller";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    /// The secret does not exist.
    #[error("there is none")]
    Missing,
    /// It has no such key, or not as text in base64.
    #[error("it lacks {0}")]
    Lacks(&'static str),
    /// The secret holds no certificate.
    #[error("its {CERTIFICATE} is no certificate")]
    NoCertificate,
    /// An API server that dials this name would not trust the certificate.
    #[error("its certificate is not for {0}")]
    OtherName(String),
    /// The certificate has expired.
    #[error("its certificate ended on {0}")]
    Ended(Timestamp),
    /// Key and certificate do not belong together, or the TLS library does not support them.
    #[error("its certificate and its key cannot be used")]
    Tls(#[from] rustls::Error),
}

/// Certificate and key that the webhook serves with.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// For API servers, PEM.
    pub(super) bundle: String,
    /// The certificate, DER. It tells one identity from another.
    pub(super) certificate: Vec<u8>,
    pub(super) tls: Arc<ServerConfig>,
    /// When the certificate expires.
    pub(super) ends: Timestamp,
    /// When we are to renew it, if it is ours.
    renew_at: Option<Timestamp>,
}

impl Identity {
    /// Of a secret.
    ///
    /// # Errors
    /// [`Unfit`]; if it is ours, or there is none, it is to be made.
    pub(super) fn of(
        secret: Option<&Value>,
        names: &[String],
        now: Timestamp,
    ) -> Result<Self, Unfit> {
        let secret = secret.ok_or(Unfit::Missing)?;
        let (bundle, certificate) = (text(secret, BUNDLE)?, text(secret, CERTIFICATE)?);
        let key = text(secret, KEY)?;
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
        let chain = chain.map_err(|_| Unfit::NoCertificate)?;
        let first = chain.first().ok_or(Unfit::NoCertificate)?.to_vec();
        let (_, parsed) = X509Certificate::from_der(&first).map_err(|_| Unfit::NoCertificate)?;
        is_for(&parsed, names)?;
        let ends = Timestamp::from_second(parsed.validity().not_after.timestamp());
        let ends = ends.map_err(|_| Unfit::NoCertificate)?;
        if ends <= now {
            return Err(Unfit::Ended(ends));
        }
        let renew_at = ends.checked_sub(days(RENEW_DAYS)).unwrap_or(ends);
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| Unfit::Lacks(KEY))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            bundle,
            certificate: first,
            tls: Arc::new(tls),
            ends,
            renew_at: is_ours(secret).then_some(renew_at),
        })
    }

    /// Whether we are to renew it. It is good until that is done.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.renew_at.is_some_and(|at| at <= now)
    }

    /// Whether the certificate has expired.
    pub(super) fn has_ended(&self, now: Timestamp) -> bool {
        self.ends <= now
    }
}

fn text(secret: &Value, name: &'static str) -> Result<String, Unfit> {
    let coded = secret["data"][name].as_str().unwrap_or_default();
    let bytes = STANDARD.decode(coded).map_err(|_| Unfit::Lacks(name))?;
    let text = String::from_utf8(bytes).map_err(|_| Unfit::Lacks(name))?;
    Some(text)
        .filter(|text| !text.is_empty())
        .ok_or(Unfit::Lacks(name))
}

fn is_for(certificate: &X509Certificate<'_>, names: &[String]) -> Result<(), Unfit> {
    let extension = certificate
        .subject_alternative_name()
        .map_err(|_| Unfit::NoCertificate)?;
    let listed = extension.map(|list| &list.value.general_names);
    let is_listed = |name: &&String| {
        let address = name.parse::<IpAddr>().map(|address| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        });
        listed.into_iter().flatten().any(|general| match general {
            GeneralName::DNSName(dns) => dns == name,
            GeneralName::IPAddress(bytes) => address.as_ref().is_ok_and(|address| bytes == address),
            _ => false,
        })
    };
    match names.iter().find(|name| !is_listed(name)) {
        None => Ok(()),
        Some(name) => Err(Unfit::OtherName(name.clone())),
    }
}

/// Whether a secret is ours to write.
pub(super) fn is_ours(secret: &Value) -> bool {
    secret["metadata"]["labels"][MANAGED_BY] == US
}

/// A new secret. Its bundle also holds the certificate that `last` was trusted by.
///
/// # Errors
/// When the operating system gives no randomness, or a name is none.
pub(super) fn make(
    (namespace, name): (&str, &str),
    names: &[String],
    last: Option<&Value>,
    now: Timestamp,
) -> Result<Value, rcgen::Error> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name = rcgen::DistinguishedName::new();
    authority
        .distinguished_name
        .push(DnType::CommonName, format!("{US} webhook authority"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_validity(&mut authority, now);
    let trusted = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("{US} webhook"));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now);
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let before = last.and_then(|last| first_of(&text(last, BUNDLE).ok()?));
    let bundle = trusted + &before.unwrap_or_default();
    let coded = |text: &str| STANDARD.encode(text);
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {MANAGED_BY: US}},
        "type": "kubernetes.io/tls",
        "data": {
            CERTIFICATE: coded(&certificate),
            KEY: coded(&key.serialize_pem()),
            BUNDLE: coded(&bundle),
        },
    }))
}

/// The first certificate of a bundle: the newest authority.
fn first_of(bundle: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let end = bundle.find(END)? + END.len();
    Some(format!("{}\n", bundle[..end].trim_start()))
}

fn set_validity(params: &mut CertificateParams, now: Timestamp) {
    let day = |at: Timestamp| {
        let date = at.to_zoned(TimeZone::UTC).date();
        let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
        rcgen::date_time_ymd(date.year().into(), month, day)
    };
    // A day back, for clocks that are behind; and one more, for days are whole.
    params.not_before = day(now.checked_sub(days(1)).unwrap_or(now));
    params.not_after = day(now.checked_add(days(VALID_DAYS + 1)).unwrap_or(now));
}

fn days(count: i64) -> Span {
    Span::new().hours(24 * count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-22T12:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().expect("a time")
    }

    fn names() -> Vec<String> {
        ["w.ns.svc", "127.0.0.1"].map(str::to_owned).to_vec()
    }

    fn made(last: Option<&Value>, at: Timestamp) -> Value {
        make(("ns", "w"), &names(), last, at).expect("made")
    }

    /// A secret of another owner whose certificate lasts for about `days_left`.
    fn foreign(days_left: i64) -> Value {
        let mut secret = made(None, now() + days(days_left - VALID_DAYS));
        secret["metadata"]["labels"] = Value::Null;
        secret
    }

    #[test]
    fn own_certificate_is_renewed_in_time_and_used_until_then() {
        let secret = made(None, now());
        let at = |then| Identity::of(Some(&secret), &names(), then).expect("fits");
        let identity = at(now());
        assert!(is_ours(&secret) && identity.bundle.contains("BEGIN CERTIFICATE"));
        let early = now() + days(VALID_DAYS - RENEW_DAYS - 1);
        assert!(!at(early).is_due(early));
        for late in [identity.ends - days(RENEW_DAYS), identity.ends - days(1)] {
            assert!(at(late).is_due(late) && !at(late).has_ended(late));
        }
        let found = Identity::of(Some(&secret), &names(), identity.ends);
        assert!(matches!(found, Err(Unfit::Ended(_))), "{found:?}");
    }

    #[test]
    fn foreign_certificate_is_used_until_its_end_and_never_due() {
        let secret = foreign(30);
        let at = |then| Identity::of(Some(&secret), &names(), then);
        let identity = at(now()).expect("30 days are left");
        assert!(!is_ours(&secret) && !identity.is_due(now()));
        let last = identity.ends - Span::new().seconds(1);
        assert!(at(last).is_ok_and(|identity| !identity.is_due(last)));
        assert!(identity.has_ended(identity.ends) && !identity.has_ended(last));
        let unfit = at(identity.ends).expect_err("it has ended").to_string();
        assert_eq!(unfit, format!("its certificate ended on {}", identity.ends));
        assert!(Identity::of(Some(&foreign(-1)), &names(), now()).is_err());
    }

    #[test]
    fn who_trusts_the_last_one_is_served_by_the_next_one() {
        let first = made(None, now());
        let second = made(Some(&first), now());
        let third = made(Some(&second), now());
        let bundle = |secret| text(secret, BUNDLE).expect("one");
        let count = |secret| bundle(secret).matches("BEGIN CERTIFICATE").count();
        assert_eq!([&first, &second, &third].map(count), [1, 2, 2]);
        assert!(bundle(&second).ends_with(&bundle(&first)));
        let identity = Identity::of(Some(&second), &names(), now()).expect("fits");
        let before = Identity::of(Some(&first), &names(), now()).expect("fits");
        assert_ne!(identity.certificate, before.certificate);
    }

    #[test]
    fn fault_of_secret_is_named() {
        let whole = made(None, now());
        let unfit = |secret: &Value, names: &[String]| {
            let found = Identity::of(Some(secret), names, now());
            found.expect_err("unfit").to_string()
        };
        for name in [CERTIFICATE, KEY, BUNDLE] {
            let mut lacks = whole.clone();
            lacks["data"][name] = Value::Null;
            assert_eq!(unfit(&lacks, &names()), format!("it lacks {name}"));
            lacks["data"][name] = json!("?");
            assert_eq!(unfit(&lacks, &names()), format!("it lacks {name}"));
        }
        let mut junk = whole.clone();
        junk["data"][CERTIFICATE] = json!(STANDARD.encode("junk"));
        assert_eq!(unfit(&junk, &names()), "its tls.crt is no certificate");
        let other = ["10.0.0.1".to_owned()];
        assert_eq!(unfit(&whole, &other), "its certificate is not for 10.0.0.1");
        let mut mixed = whole.clone();
        mixed["data"][KEY] = made(None, now())["data"][KEY].clone();
        assert!(unfit(&mixed, &names()).contains("cannot be used"));
        assert!(matches!(
            Identity::of(None, &names(), now()),
            Err(Unfit::Missing)
        ));
    }
}
