//! Rows of NeonVM's own suite (docs/compatibility/neonvm.md §5) that want another guest than the
//! others have: one with swap, a disk with quotas and a certificate. It is a container image's, for
//! such a guest has the tools of quotas.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bellows_tests::cluster::pack_guest;
use bellows_tests::process::Process;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};

use super::{World, moving};

const VM: &str = "rows";
const SWAP_BYTES: u64 = 1 << 30;
const SMALLER_BYTES: u64 = 512 << 20;
const PAGE_BYTES: u64 = 4096;
/// Mount point of the disk with quotas.
const DATA: &str = "/var/db/postgres/compute";
/// Quota in KiB.
const QUOTA_KIB: u64 = 1 << 20;
const CERTIFICATE: &str = "tls-neonvm-rows";
/// Log of the issuer.
const LOG: &str = "cert-manager.log";
const SERVER: &str = "vm.neon.local";
const ISSUER: &str = "neon-ca-issuer";

/// A chain as NeonVM's own local cluster has it.
const CHAIN: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: cert-manager}
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: self-signed}
spec: {selfSigned: {}}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: authority, namespace: cert-manager}
spec:
  isCA: true
  commonName: authority
  secretName: authority
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {name: self-signed, kind: ClusterIssuer, group: cert-manager.io}
---
apiVersion: cert-manager.io/v1
kind: ClusterIssuer
metadata: {name: neon-ca-issuer}
spec: {ca: {secretName: authority}}
";

/// Objects that the guest needs. The first case with this guest creates them.
pub(super) struct Fixture {
    /// cert-manager, which ends with the test.
    _issuer: Process,
    /// Whom a client of the guest trusts, PEM.
    authority: String,
}

impl Fixture {
    async fn apply(world: &World) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let archive = pack_guest(VM, &container(), dir.path())?;
        world.cluster.load_all(&[archive])?;
        let plane = world.cluster.plane();
        let kinds = world.others.cert_manager.kinds.display().to_string();
        // Server-side, because the definitions are too large for the annotation of the client side.
        plane.ask(&["apply", "--server-side", "--filename", &kinds])?;
        plane.until_established()?;
        let mut command = Command::new(&world.others.cert_manager.program);
        command.arg("--kubeconfig").arg(plane.kubeconfig());
        let log = File::create(world.dir.path().join(LOG))?;
        let issuer = Process::start(&mut command, log)?;
        plane.apply(CHAIN)?;
        let ready = ["--for=condition=Ready", "--timeout=240s"];
        let chain = ["wait", "clusterissuer", ISSUER];
        plane.ask(&[&chain[..], &ready[..]].concat())?;
        let secret = ["get", "secret", "-n", "cert-manager", "authority"];
        let part = ["-o", "jsonpath={.data.tls\\.crt}"];
        let authority = plane.ask(&[&secret[..], &part[..]].concat())?;
        Ok(Self {
            _issuer: issuer,
            authority: String::from_utf8(STANDARD.decode(authority.trim())?)?,
        })
    }
}

/// A container image with a shell and an idle program.
fn container() -> Value {
    let shell = json!([
        {"file": {"from": "/bin/busybox", "at": "/bin/busybox", "mode": 0o755}},
        {"link": {"to": "busybox", "at": "/bin/sh"}},
        {"link": {"to": "busybox", "at": "/bin/sleep"}},
        {"directory": {"at": "/tmp", "mode": 0o1777}},
        {"text": {"text": "postgres:x:1234:1234::/tmp:/bin/sh\n", "at": "/etc/passwd"}},
        {"text": {"text": "postgres:x:1234:\n", "at": "/etc/group"}},
    ]);
    json!({
        "reference": "docker.io/bellows-tests/rows:1", "layers": [shell],
        "entrypoint": ["/bin/sleep", "2147483647"], "user": "postgres",
    })
}

fn spec() -> Value {
    json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": {"name": VM},
    "spec": {
        "schedulerName": "autoscale-scheduler",
        "guest": {
            "cpus": {"min": 1, "use": 1, "max": 1}, "memorySlots": {"min": 1, "use": 1, "max": 1},
            "rootDisk": {"image": format!("bellows/{VM}:1")},
            "settings": {"swap": "1Gi"},
        },
        "disks": [{"name": "data", "mountPath": DATA,
            "emptyDisk": {"size": "2Gi", "discard": true, "enableQuotas": true}}],
        "tls": {"certificateIssuer": ISSUER, "expireAfter": "24h", "renewBefore": "1h", "serverName": SERVER},
    }})
}

/// The running VM. It is created if it is missing.
async fn vm(world: &World) -> Result<Value> {
    world
        .fixture
        .get_or_try_init(|| Fixture::apply(world))
        .await?;
    if world.get("neonvm", VM).is_err() {
        world.cluster.plane().apply(&spec().to_string())?;
    }
    let runs = |vm: &Value| vm["status"]["phase"] == "Running";
    let vm = world.that("neonvm", VM, "runs", runs).await?;
    let size = (&vm["status"]["cpus"], &vm["status"]["memorySize"]);
    ensure!(
        vm["status"]["restartCount"] == 0 && size == (&json!(1), &json!("1Gi")),
        "{}",
        vm["status"]
    );
    Ok(vm)
}

/// Ends it: other cases count guests.
pub(super) fn end(world: &World) -> Result<()> {
    let args = [
        "delete",
        "neonvm",
        VM,
        "--ignore-not-found",
        "--timeout=120s",
    ];
    if world.fixture.initialized() {
        world.cluster.plane().ask(&args)?;
    }
    Ok(())
}

/// Log of the issuer, and its requests.
pub(super) fn explain(world: &World) -> String {
    let log = std::fs::read_to_string(world.dir.path().join(LOG)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(15)..].join("\n");
    let asked = ["get", "certificaterequest", "-A", "-o", "wide"];
    let asked = world.cluster.plane().ask(&asked).unwrap_or_default();
    format!("--- cert-manager\n{last}\n{asked}")
}

/// A secret of a VM: of that type, and owned by it.
fn secret(world: &World, vm: &str, name: &str, kind: &str) -> Result<Value> {
    let secret = world.get("secret", name)?;
    ensure!(secret["type"] == kind, "{}", secret["type"]);
    let owner = &secret["metadata"]["ownerReferences"][0];
    ensure!(
        owner["kind"] == "VirtualMachine" && owner["name"] == vm,
        "{owner}"
    );
    Ok(secret)
}

/// vm-ssh and vm-neonvmd, in the guest of the other cases.
pub(super) async fn ssh(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let name = vm["status"]["sshSecretName"].as_str().unwrap_or_default();
    ensure!(name == "ssh-neonvm-pg", "{name}");
    let key = secret(world, "pg", name, "kubernetes.io/ssh-auth")?;
    ensure!(key["immutable"] == true, "the key may be changed");
    world.guest_says(&vm, "true").await?;
    let sent = world.dir.path().join("sent");
    std::fs::write(&sent, "a file of the test's")?;
    let (mut scp, root, _key) = world.cluster.reach("scp", &vm)?;
    let output = scp.arg(&sent).arg(format!("{root}:/root/sent")).output()?;
    ensure!(
        output.status.success(),
        "scp: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let there = world.guest_says(&vm, "cat /root/sent").await?;
    ensure!(there == "a file of the test's", "{there}");
    let daemons = world.guest_says(&vm, "pidof neonvmd | wc -w").await?;
    ensure!(daemons == "1", "{daemons} daemons");
    Ok(())
}

pub(super) async fn swap(world: &World) -> Result<()> {
    let vm = vm(world).await?;
    swap_is(world, &vm, SWAP_BYTES - PAGE_BYTES).await?;
    world
        .guest(&vm, &format!("resize-swap {SMALLER_BYTES}"))
        .context("smaller")?;
    swap_is(world, &vm, SMALLER_BYTES - PAGE_BYTES).await?;
    // As large again: the next case may be this one.
    world
        .guest(&vm, &format!("resize-swap {SWAP_BYTES}"))
        .context("as large again")?;
    swap_is(world, &vm, SWAP_BYTES - PAGE_BYTES).await
}

async fn swap_is(world: &World, vm: &Value, bytes: u64) -> Result<()> {
    let line = world.guest_says(vm, "grep SwapTotal /proc/meminfo").await?;
    let words: Vec<&str> = line.split_whitespace().collect();
    ensure!(
        words == ["SwapTotal:", &(bytes / 1024).to_string(), "kB"],
        "{line}, not {bytes} bytes"
    );
    Ok(())
}

pub(super) async fn disk_quota(world: &World) -> Result<()> {
    let vm = vm(world).await?;
    let report = async || -> Result<Vec<String>> {
        let text = world
            .guest_says(&vm, &format!("repquota -P {DATA}"))
            .await?;
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        let [line] = lines[..] else {
            bail!("not one project: {text}")
        };
        Ok(line.split_whitespace().map(str::to_owned).collect())
    };
    let words = report().await?;
    ensure!(
        words.first().is_some_and(|project| project == "#0"),
        "{words:?}"
    );
    world.guest(&vm, &format!("set-disk-quota {QUOTA_KIB} {DATA}"))?;
    let words = report().await?;
    ensure!(words.get(4) == Some(&QUOTA_KIB.to_string()), "{words:?}");
    let write = |mib: u32, file: &str| {
        format!(
            "/neonvm/bin/setpriv --reuid 1234 --regid 1234 --clear-groups dd if=/dev/zero of={DATA}/{file} bs=1M count={mib} 2>&1 \
             && echo written || echo refused"
        )
    };
    let said = world.guest(&vm, &write(100, "some"))?;
    ensure!(said.ends_with("written"), "{said}");
    let kib = world.guest(&vm, &format!("sync; du -k {DATA}/some"))?;
    ensure!(
        kib.split_whitespace().next() == Some("102400"),
        "100 MiB are {kib}"
    );
    let said = world.guest(&vm, &write(1024, "more"))?;
    ensure!(
        said.contains("quota") && said.ends_with("refused"),
        "{said}"
    );
    world
        .guest(&vm, &format!("rm {DATA}/some {DATA}/more"))
        .map(drop)
}

pub(super) async fn tls(world: &World) -> Result<()> {
    let vm = vm(world).await?;
    let name = vm["status"]["tlsSecretName"].as_str().unwrap_or_default();
    ensure!(name == CERTIFICATE, "{name}");
    let pair = secret(world, VM, name, "kubernetes.io/tls")?;
    let chain = world.guest_says(&vm, "cat /var/tls/tls.crt").await?;
    let key = world.guest_says(&vm, "cat /var/tls/tls.key").await?;
    let stored = pair["data"]["tls.crt"].as_str().unwrap_or_default();
    let stored = String::from_utf8(STANDARD.decode(stored)?)?;
    ensure!(stored.trim() == chain, "{chain}\n is not\n{stored}");
    let fixture = world.fixture.get().context("it was laid")?;
    verify(&chain, &key, &fixture.authority)
}

/// A client with the authority accepts the certificate, and the key belongs to it.
fn verify(chain: &str, key: &str, authority: &str) -> Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
    let chain: Vec<_> = chain.collect::<Result<_, _>>()?;
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let (own, others) = chain.split_first().context("no certificate")?;
    let name = ServerName::try_from(SERVER)?;
    verifier.verify_server_cert(own, others, &name, &[], UnixTime::now())?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    CertifiedKey::from_der(chain, key, &provider)?;
    Ok(())
}

/// Disks beside the root disk that the guest writes to are not copied. The guest stays, and the
/// migration reports why.
pub(super) async fn stays(world: &World) -> Result<()> {
    let vm = vm(world).await?;
    let boot = world.guest_says(&vm, moving::BOOT_ID).await?;
    moving::migrate(world, "stays", &json!({"vmName": VM}))?;
    let over = moving::over(world, "stays").await?;
    let told = moving::said(&over);
    ensure!(
        over["status"]["phase"] == "Failed"
            && told.contains("the guest writes to its swap and disk \"data\""),
        "{}",
        over["status"]
    );
    let pod = &vm["status"]["podName"];
    let is_home =
        |vm: &Value| vm["status"]["phase"] == "Running" && vm["status"]["podName"] == *pod;
    let vm = world
        .that("neonvm", VM, "runs where it was", is_home)
        .await?;
    world.guests_are(1).await?;
    let now = world.guest_says(&vm, moving::BOOT_ID).await?;
    ensure!(now == boot, "it is another guest");
    let plane = world.cluster.plane();
    plane
        .ask(&["delete", "neonvmm", "stays", "--timeout=120s"])
        .map(drop)
}
