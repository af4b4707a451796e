//! Certificates of guests: the controller between an API server, ours and Kubernetes' own, and an
//! issuer of this test that is slow, refuses, and signs. Requests and answers have cert-manager's
//! form.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bellows_tests::api::{Api, Flavour, foreign_kind};
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::program;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use test_authority::Authority;

const PATIENCE: Duration = Duration::from_secs(60);
const VM: &str = "guarded";
const SECRET: &str = "tls-neonvm-guarded";
const HOUR: Duration = Duration::from_secs(3600);
/// The first certificate is renewed an hour before its end. It is made to be due after this time.
const DUE_AFTER: Duration = Duration::from_secs(8);

/// cert-manager's definition of the kind, as far as this test needs it.
fn certificate_requests() -> Value {
    foreign_kind(
        "cert-manager.io",
        [
            "CertificateRequest",
            "certificaterequests",
            "certificaterequest",
        ],
        true,
    )
}

struct Scene {
    api: Api,
    requests: kube::Api<DynamicObject>,
    secrets: kube::Api<Secret>,
    pods: kube::Api<Pod>,
    vms: kube::Api<DynamicObject>,
    authority: Authority,
}

impl Scene {
    async fn set(flavour: Flavour, test: &str) -> Option<Self> {
        let api = Api::start_or_skip(flavour, test).await.unwrap()?;
        api.add_kind(&certificate_requests()).unwrap();
        let client = api.client().await.unwrap();
        let request = GroupVersionKind::gvk("cert-manager.io", "v1", "CertificateRequest");
        let vm = GroupVersionKind::gvk("vm.neon.tech", "v1", "VirtualMachine");
        let dynamic =
            |kind| kube::Api::default_namespaced_with(client.clone(), &ApiResource::from_gvk(kind));
        Some(Self {
            requests: dynamic(&request),
            vms: dynamic(&vm),
            secrets: kube::Api::default_namespaced(client.clone()),
            pods: kube::Api::default_namespaced(client),
            api,
            authority: Authority::new("neon-ca-issuer"),
        })
    }

    fn controller(&self, dir: &Path) -> Process {
        let mut command = Command::new(program("neonvm-controller"));
        command
            .args(["--runner-image", "runner:test", "--listen", "127.0.0.1:0"])
            .arg("--state-dir")
            .arg(dir)
            .env("KUBECONFIG", self.api.for_the_controller(dir).unwrap());
        let log = File::create(dir.join("controller.log")).unwrap();
        Process::start(&mut command, log).unwrap()
    }

    fn make_vm(&self) {
        let mut vm = self.api.vm(VM);
        vm["spec"]["tls"] = json!({
            "certificateIssuer": "neon-ca-issuer", "expireAfter": "24h", "renewBefore": "1h",
            "serverName": "vm.neon.local",
        });
        let file = self.api.file("vm.json", &vm.to_string()).unwrap();
        self.api.kubectl(&["apply", "-f", &file]).unwrap();
    }

    /// A request that has not this uid.
    async fn request(&self, not: Option<&str>) -> DynamicObject {
        let made = wait_for("a request for a certificate", PATIENCE, || async {
            let found = self.requests.get_opt(VM).await;
            let found = found.map_err(|error| error.to_string())?.ok_or("none")?;
            if found.metadata.uid.as_deref() == not {
                return Err("the old one".to_owned());
            }
            Ok(found)
        });
        made.await.unwrap()
    }

    async fn answer(&self, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let params = PatchParams::default();
        self.requests
            .patch_status(VM, &params, &patch)
            .await
            .unwrap();
    }

    /// The issuer signs, for so long before and after now.
    async fn sign(&self, request: &DynamicObject, until: Duration) {
        let text = request.data["spec"]["request"].as_str().unwrap();
        let pem = String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
        let now = SystemTime::now();
        // The life is 24 hours, of which some are over.
        let from = now + until - 24 * HOUR;
        let chain = self.authority.grants(&pem, (from, now + until));
        let ready = json!({"type": "Ready", "status": "True", "reason": "Issued", "message": "ok"});
        let certificate = STANDARD.encode(chain);
        self.answer(json!({"conditions": [ready], "certificate": certificate}))
            .await;
    }

    async fn degraded(&self, words: &str) {
        let told = wait_for(words, PATIENCE, || async {
            let vm = self.vms.get(VM).await.map_err(|error| error.to_string())?;
            let conditions = vm.data["status"]["conditions"].to_string();
            conditions.contains(words).then_some(()).ok_or(conditions)
        });
        told.await.unwrap();
    }

    /// The pair that guests get, other than this one.
    async fn pair(&self, not: Option<&Secret>) -> Secret {
        let stored = wait_for("a stored certificate", PATIENCE, || async {
            let found = self.secrets.get_opt(SECRET).await;
            let found = found.map_err(|error| error.to_string())?.ok_or("none")?;
            if not.is_some_and(|not| not.data == found.data) {
                return Err("the old one".to_owned());
            }
            Ok(found)
        });
        stored.await.unwrap()
    }

    async fn pods(&self) -> Vec<Pod> {
        let mine = ListParams::default().labels(&format!("vm.neon.tech/name={VM}"));
        self.pods.list(&mine).await.unwrap().items
    }

    /// Temporary objects of a certificate are gone.
    async fn tidied(&self) {
        let gone = wait_for("the end of key and request", PATIENCE, || async {
            let key = self.secrets.get_opt(&format!("{SECRET}-tmp")).await;
            let request = self.requests.get_opt(VM).await;
            match (key, request) {
                (Ok(None), Ok(None)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        gone.await.unwrap();
    }
}

fn bytes(secret: &Secret, member: &str) -> Vec<u8> {
    let data = secret.data.as_ref().and_then(|data| data.get(member));
    data.map(|ByteString(bytes)| bytes.clone()).unwrap()
}

/// A server could use it: certificate and key belong together, and the key is in the traditional
/// encoding.
fn is_a_pair(secret: &Secret) {
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    let owner = secret.metadata.owner_references.as_ref().unwrap();
    assert_eq!(
        (owner[0].kind.as_str(), owner[0].name.as_str()),
        ("VirtualMachine", VM)
    );
    let (chain, key) = (bytes(secret, "tls.crt"), bytes(secret, "tls.key"));
    assert!(key.starts_with(b"-----BEGIN EC PRIVATE KEY-----"));
    let chain = CertificateDer::pem_slice_iter(&chain)
        .collect::<Result<_, _>>()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(&key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key);
    server.unwrap();
}

/// An issuer that is silent, one that refuses, then a guest with a certificate and its renewal.
async fn from_first_to_next(scene: Scene) {
    let dir = tempfile::tempdir().unwrap();
    let controller = scene.controller(dir.path());
    scene.make_vm();
    let first = scene.request(None).await;
    assert_eq!(
        first.data["spec"]["issuerRef"],
        json!({"name": "neon-ca-issuer", "kind": "ClusterIssuer", "group": "cert-manager.io"})
    );
    assert_eq!(first.data["spec"]["duration"], "24h");
    scene
        .degraded("no certificate from ClusterIssuer neon-ca-issuer yet")
        .await;
    assert!(scene.pods().await.is_empty(), "it waits");

    let denied = json!({"type": "Denied", "status": "True", "reason": "x", "message": "not here"});
    scene.answer(json!({"conditions": [denied]})).await;
    scene.degraded("(Denied): not here").await;
    // The controller ends in the middle, and another one continues.
    drop(controller);
    let _controller = scene.controller(dir.path());
    let second = scene.request(first.metadata.uid.as_deref()).await;
    assert!(scene.pods().await.is_empty(), "it still waits");

    scene.sign(&second, HOUR + DUE_AFTER).await;
    let pair = scene.pair(None).await;
    is_a_pair(&pair);
    let pod = wait_for("a pod", PATIENCE, || async {
        scene.pods().await.pop().ok_or_else(|| "none".to_owned())
    });
    let spec = serde_json::to_value(pod.await.unwrap().spec).unwrap();
    let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
    let mounted = json!({"name": "tls", "mountPath": "/vm/mounts/var/tls"});
    assert!(mounts.contains(&mounted), "{mounts:?}");
    let volumes = spec["volumes"].as_array().unwrap();
    let is_it = |volume: &&Value| volume["secret"]["secretName"] == SECRET;
    assert_eq!(volumes.iter().filter(is_it).count(), 1, "{volumes:?}");

    // The certificate is due. The controller requests a new one, and the old one is used until
    // then.
    let third = scene.request(second.metadata.uid.as_deref()).await;
    let kept = scene.secrets.get(SECRET).await.unwrap();
    assert_eq!(kept.data, pair.data);
    scene.sign(&third, 24 * HOUR).await;
    let next = scene.pair(Some(&pair)).await;
    is_a_pair(&next);
    assert_ne!(bytes(&next, "tls.key"), bytes(&pair, "tls.key"));
    scene.tidied().await;
    assert_eq!(
        scene.pods().await.len(),
        1,
        "the guest gets it by its files"
    );
}

/// Requirement: N17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_gets_its_certificate_on_our_server() {
    let test = "a_guest_gets_its_certificate_on_our_server";
    if let Some(scene) = Scene::set(Flavour::Embedded, test).await {
        from_first_to_next(scene).await;
    }
}

/// Requirement: N17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_gets_its_certificate_on_kubernetes() {
    let test = "a_guest_gets_its_certificate_on_kubernetes";
    if let Some(scene) = Scene::set(Flavour::Kubernetes, test).await {
        from_first_to_next(scene).await;
    }
}
