//! An API server for tests: our embedded one, or Kubernetes' own.

mod foreign;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::OnceCell;

pub use self::foreign::{attachment_kind, foreign_kind};
use crate::cluster::{
    AUDIT_LOG, AUDIT_POLICY, ControlPlane, Lifetime, Programs, Tier, cluster_or_skip,
    kubectl_or_skip, spawn, until_established,
};
use crate::kubeconfig::{config_of, install_crypto};
use crate::patience::wait_for;
use crate::{checkout, program};

/// Kinds of objects that define an account and its rights.
const RIGHTS: [&str; 6] = [
    "Namespace",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
];
/// Longest time until a webhook is trusted on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Program that serves the API in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// The embedded API server, `neonvm-apiserver`.
    Embedded,
    /// etcd with kube-apiserver.
    Kubernetes,
}

/// A server for the whole test program, and a namespace in it for one test.
#[derive(Debug)]
pub struct Api {
    /// Kind of the server.
    pub flavour: Flavour,
    /// Namespace of this test. It is the client's default.
    pub namespace: String,
    /// Lines of the server's audit log.
    pub audit_log: PathBuf,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    scratch: TempDir,
}

struct Running {
    kubeconfig: PathBuf,
    audit_log: PathBuf,
    _dir: TempDir,
    _alive: Alive,
}

/// Processes that end with the test program.
enum Alive {
    Embedded {
        _process: Child,
    },
    Kubernetes {
        _webhook: Child,
        _plane: Box<ControlPlane>,
    },
}

static EMBEDDED: OnceCell<Running> = OnceCell::const_new();
static KUBERNETES: OnceCell<Running> = OnceCell::const_new();
static NAMESPACES: AtomicUsize = AtomicUsize::new(0);

impl Api {
    /// Creates a namespace in a server of that kind, with our kinds installed. The first test
    /// starts the server. If programs are missing, the test is [recorded](test_records::skip) as
    /// skipped. The embedded server needs `kubectl` only.
    ///
    /// # Errors
    ///
    /// If the server does not start.
    ///
    /// # Panics
    ///
    /// If the test may not be skipped.
    pub async fn start_or_skip(flavour: Flavour, test: &str) -> Result<Option<Self>> {
        install_crypto();
        let (running, kubectl) = match flavour {
            Flavour::Embedded => {
                let Some(kubectl) = kubectl_or_skip(test) else {
                    return Ok(None);
                };
                (EMBEDDED.get_or_try_init(embedded).await?, kubectl)
            }
            Flavour::Kubernetes => {
                let Some(programs) = cluster_or_skip(test) else {
                    return Ok(None);
                };
                let kubectl = programs.path("kubectl");
                let start = || kubernetes(programs);
                (KUBERNETES.get_or_try_init(start).await?, kubectl)
            }
        };
        Self::in_new_namespace(flavour, running, kubectl).map(Some)
    }

    fn in_new_namespace(flavour: Flavour, running: &Running, kubectl: PathBuf) -> Result<Self> {
        let number = NAMESPACES.fetch_add(1, Ordering::Relaxed);
        let api = Self {
            flavour,
            namespace: format!("contract-{number}"),
            kubeconfig: running.kubeconfig.clone(),
            audit_log: running.audit_log.clone(),
            kubectl,
            scratch: tempfile::tempdir()?,
        };
        api.kubectl(&["create", "namespace", &api.namespace])?;
        if flavour == Flavour::Kubernetes {
            // No controller creates it, and pods are refused without it.
            api.kubectl(&["create", "serviceaccount", "default"])?;
        }
        Ok(api)
    }

    /// Kubeconfig of the server's clients.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Kubeconfig of a controller in a test. On Kubernetes it has the rights of the deployed
    /// controller's service account and no more.
    ///
    /// # Errors
    ///
    /// If that account cannot be created, or the file in `dir` not written.
    pub fn for_the_controller(&self, dir: &Path) -> Result<PathBuf> {
        if self.flavour == Flavour::Embedded {
            return Ok(self.kubeconfig.clone());
        }
        let manifests = checkout().join("deploy/controller");
        let made = ["kustomize", manifests.to_str().context("a path of UTF-8")?];
        let made = self.kubectl(&made)?;
        // The account and its rights; the webhook of this server is another process.
        let is_one = |one: &&str| {
            let mut kinds = one.lines().filter_map(|line| line.strip_prefix("kind: "));
            kinds.any(|kind| RIGHTS.contains(&kind))
        };
        let rights: Vec<&str> = made.split("\n---\n").filter(is_one).collect();
        let file = self.file("rights.yaml", &rights.join("\n---\n"))?;
        let home = ["--namespace", "neonvm-system"];
        self.kubectl(&[&["apply", "-f", &file][..], &home].concat())?;
        let make = ["create", "token", "neonvm-controller"];
        let token = self.kubectl(&[&make[..], &home].concat())?;
        let view = self.kubectl(&["config", "view", "--raw", "-o", "json"])?;
        let mut config: serde_json::Value = serde_json::from_str(&view)?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        let path = dir.join("controller.kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// A client whose default namespace is this test's.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<kube::Client> {
        let mut config = config_of(&self.kubeconfig).await?;
        config.default_namespace.clone_from(&self.namespace);
        Ok(kube::Client::try_from(config)?)
    }

    /// A client that shows another token than any that there is, or one of an account.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client_with_token(&self, token: &str) -> Result<kube::Client> {
        let mut config = config_of(&self.kubeconfig).await?;
        config.auth_info = serde_json::from_value(json!({"token": token}))?;
        Ok(kube::Client::try_from(config)?)
    }

    /// Runs `kubectl` in this test's namespace.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn kubectl_output(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.kubectl);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(self.scratch.path().join("kubectl-cache"))
            .args(["--namespace", &self.namespace])
            .args(args)
            .stdin(Stdio::null());
        Ok(command.output()?)
    }

    /// Runs `kubectl` and returns its output.
    ///
    /// # Errors
    ///
    /// If it fails. The message holds its error.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = self.kubectl_output(args)?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("kubectl {args:?} on {:?}: {errors}", self.flavour);
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs `kubectl`, which must fail, and returns its error.
    ///
    /// # Errors
    ///
    /// If it succeeds.
    pub fn kubectl_fails(&self, args: &[&str]) -> Result<String> {
        let output = self.kubectl_output(args)?;
        if output.status.success() {
            bail!("kubectl {args:?} succeeded on {:?}", self.flavour);
        }
        Ok(String::from_utf8(output.stderr)?)
    }

    /// Installs a kind and waits until it is served.
    ///
    /// # Errors
    ///
    /// If it is refused, or not served in time.
    pub fn add_kind(&self, kind: &serde_json::Value) -> Result<()> {
        let file = self.file("kind.json", &kind.to_string())?;
        self.kubectl(&["apply", "-f", &file])?;
        until_established(&["-f", &file], |args| self.kubectl(args))
    }

    /// Writes a file for `kubectl`; its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.scratch.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_str().context("a path of UTF-8")?.to_owned())
    }

    /// A VM that passes all checks.
    #[must_use]
    pub fn vm(&self, name: &str) -> serde_json::Value {
        json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"guest": {
                "cpus": {"min": "250m", "use": 1, "max": 4},
                "memorySlots": {"min": 1, "use": 2, "max": 8},
                "rootDisk": {"image": "pg:16"},
            }},
        })
    }
}

async fn embedded() -> Result<Running> {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("log"))?;
    let mut words = vec![OsString::from(program("neonvm-apiserver"))];
    words.extend(["--listen", "127.0.0.1:0", "--state-dir"].map(OsString::from));
    words.push(dir.path().into());
    let audit_log = dir.path().join(AUDIT_LOG);
    words.extend(["--audit-log".into(), audit_log.clone().into()]);
    let process = spawn(dir.path(), "apiserver", Lifetime::WithUs, &words)?;
    let log = dir.path().join("log/apiserver.log");
    // Line that the server prints when it is ready.
    let kubeconfig = wait_for("the embedded API server", PATIENCE, || async {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let mut lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let found = lines.find_map(|line| line.trim().split_once(" kubeconfig "));
        found.map(|(_, path)| PathBuf::from(path)).ok_or(text)
    })
    .await?;
    Ok(Running {
        kubeconfig,
        audit_log,
        _dir: dir,
        _alive: Alive::Embedded { _process: process },
    })
}

async fn kubernetes(programs: Programs) -> Result<Running> {
    let dir = tempfile::tempdir()?;
    let policy = checkout().join("deploy/fleet/audit-policy.yaml");
    std::fs::copy(policy, dir.path().join(AUDIT_POLICY))?;
    let plane = ControlPlane::start(programs, dir.path(), Tier::Api, Lifetime::WithUs).await?;
    plane.install_kinds()?;
    let webhook = webhook(&plane, dir.path()).await?;
    Ok(Running {
        kubeconfig: plane.kubeconfig(),
        audit_log: dir.path().join(AUDIT_LOG),
        _dir: dir,
        _alive: Alive::Kubernetes {
            _webhook: webhook,
            _plane: Box::new(plane),
        },
    })
}

/// A held Lease, so that the controllers answer webhooks but do not work on objects.
const NOBODYS_LEASE: &str = r#"
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: a3b22509.neon.tech, namespace: default}
spec: {holderIdentity: nobody, leaseDurationSeconds: 3600}
"#;

/// A controller as the webhook of a control plane, dialled at its address as there is no pod.
async fn webhook(plane: &ControlPlane, dir: &Path) -> Result<Child> {
    plane.apply(NOBODYS_LEASE)?;
    let [.., high, middle, low] = std::process::id().to_be_bytes();
    // Each test program has its own address, at which only this test listens.
    let address = format!("127.{}.{middle}.{low}:9443", high | 0x80);
    plane.apply(&dialled_at(&address)?)?;
    let kubeconfig = format!("KUBECONFIG={}", plane.kubeconfig().display());
    let controller = program("neonvm-controller");
    let mut words = vec![OsString::from("env"), kubeconfig.into(), controller.into()];
    words.extend(["--leader-elect", "--listen", "127.0.0.1:0"].map(OsString::from));
    words.extend(["--webhook-listen", &address].map(OsString::from));
    // Statics are never dropped. The process ends with the test program, as both servers do.
    let process = spawn(dir, "webhook", Lifetime::WithUs, &words)?;
    let log = dir.join("log/webhook.log");
    for kind in ["mutating", "validating"] {
        let name = format!("neonvm-{kind}-webhook-configuration");
        let path = "jsonpath={range .webhooks[*]}{.name}={.clientConfig.caBundle} {end}";
        let args = [
            "get",
            &format!("{kind}webhookconfiguration"),
            &name,
            "-o",
            path,
        ];
        wait_for("a trusted webhook", PATIENCE, || async {
            let bundles = plane.ask(&args).map_err(|error| format!("{error:#}"))?;
            // The text of a certificate may end with `=`.
            let has_bundle = |hook: &str| {
                let bundle = hook.split_once('=').map(|(_, bundle)| bundle);
                bundle.is_some_and(|bundle| !bundle.is_empty())
            };
            let mut all = bundles.split_whitespace().peekable();
            if all.peek().is_some() && all.all(has_bundle) {
                return Ok(());
            }
            Err(std::fs::read_to_string(&log).unwrap_or_default())
        })
        .await?;
    }
    Ok(process)
}

/// The deployed configurations, with addresses in place of the service.
fn dialled_at(address: &str) -> Result<String> {
    let text = std::fs::read_to_string(
        checkout().join("deploy/chart/bellows/parts/controller/webhook.yaml"),
    )?;
    let documents = text
        .split("\n---\n")
        .filter(|one| !one.contains("kind: Service\n"));
    let dialled = |line: &str| match line.split_once("service: {") {
        Some((space, service)) => {
            let path = service.split_once("path: ").map_or("", |(_, path)| path);
            format!(
                "{space}url: \"https://{address}{}\"",
                path.trim_end_matches('}')
            )
        }
        None => line.to_owned(),
    };
    let documents = documents.map(|one| one.lines().map(dialled).collect::<Vec<_>>().join("\n"));
    Ok(documents.collect::<Vec<_>>().join("\n---\n"))
}
