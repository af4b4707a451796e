//! The certificates of one cluster: one authority, a certificate for each component, the key of
//! service accounts.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use super::files::private_file;

/// First address of the services' range, under which pods would reach the API.
pub(super) const SERVICE_ADDRESS: [u8; 4] = [10, 96, 0, 1];
/// Names of the API server in certificates.
const API_NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
/// The group whose members may do everything.
const MASTERS: &str = "system:masters";
/// Certificates: file name, common name, group.
const LEAVES: [(&str, &str, &str); 6] = [
    ("apiserver", "kube-apiserver", ""),
    ("kubelet-client", "kube-apiserver-kubelet-client", MASTERS),
    ("front-proxy", "front-proxy-client", ""),
    ("admin", "bellows-admin", MASTERS),
    ("controllers", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
];

/// The authority of a cluster that is being made.
pub(super) struct Pki {
    dir: PathBuf,
    ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
    leaves: Vec<(String, String, String)>,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Pki {
    /// Makes everything and writes it into `dir`, which is private. The API is served at
    /// `addresses`.
    pub(super) fn make(dir: &Path, addresses: &[IpAddr]) -> Result<Self> {
        let ca_key = KeyPair::generate().context("cannot make a key")?;
        let params = ca_params();
        let ca_pem = params.self_signed(&ca_key)?.pem();
        private_file(&dir.join("ca.crt"), &ca_pem)?;
        private_file(&dir.join("ca.key"), &ca_key.serialize_pem())?;
        let accounts = KeyPair::generate().context("cannot make a key")?;
        private_file(&dir.join("sa.key"), &accounts.serialize_pem())?;
        private_file(&dir.join("sa.pub"), &accounts.public_key_pem())?;
        let mut pki = Self {
            dir: dir.to_owned(),
            ca_pem,
            issuer: Issuer::new(params, ca_key),
            leaves: Vec::new(),
        };
        let mut all = vec![IpAddr::from(SERVICE_ADDRESS)];
        all.extend(addresses);
        for (file, name, group) in LEAVES {
            pki.certify(file, name, group, &API_NAMES, &all)?;
        }
        Ok(pki)
    }

    /// Certifies one more: its files, its common name and group, and where it serves.
    pub(super) fn certify(
        &mut self,
        file: &str,
        name: &str,
        group: &str,
        names: &[&str],
        addresses: &[IpAddr],
    ) -> Result<()> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let leaf = leaf_params(named(name, group), names, addresses)?;
        let pem = leaf.signed_by(&key, &self.issuer)?.pem();
        private_file(&self.dir.join(format!("{file}.crt")), &pem)?;
        let key = key.serialize_pem();
        private_file(&self.dir.join(format!("{file}.key")), &key)?;
        self.leaves.push((file.to_owned(), pem, key));
        Ok(())
    }

    /// A self-contained kubeconfig for a certified user.
    pub(super) fn kubeconfig(&self, leaf: &str, url: &str) -> Result<String> {
        let (name, certificate, key) = self
            .leaves
            .iter()
            .find(|(file, ..)| file == leaf)
            .context("nobody of that name is certified")?;
        let data = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        let (ca, certificate, key) = (data(&self.ca_pem), data(certificate), data(key));
        Ok(format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: cluster\n\
             clusters: [{{name: cluster, cluster: {{server: \"{url}\", certificate-authority-data: {ca}}}}}]\n\
             users: [{{name: {name}, user: {{client-certificate-data: {certificate}, client-key-data: {key}}}}}]\n\
             contexts: [{{name: cluster, context: {{cluster: cluster, user: {name}}}}}]\n"
        ))
    }
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named("bellows-cluster-ca", "");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn leaf_params(
    whole: DistinguishedName,
    names: &[&str],
    addresses: &[IpAddr],
) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    let addresses = addresses.iter().copied().map(SanType::IpAddress);
    params.subject_alt_names.extend(addresses);
    params.distinguished_name = whole;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    Ok(params)
}

fn named(name: &str, group: &str) -> DistinguishedName {
    let mut whole = DistinguishedName::new();
    if !group.is_empty() {
        whole.push(DnType::OrganizationName, group);
    }
    whole.push(DnType::CommonName, name);
    whole
}
