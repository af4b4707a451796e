//! A control plane: start, readiness, restart of its parts, end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hyper::http::Request;
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use super::files::{private_dir, private_file};
use super::groups::{POLL_INTERVAL, group, remove_groups};
use super::pki::Pki;
use super::programs::Programs;
use super::record::{self, Known, Part};
use super::spawn::{Lifetime, spawn};
use crate::kubeconfig::{client_of, config_of, install_crypto};
use crate::patience::wait_for;

/// Longest time until a component is ready on a busy machine. An idle machine takes 4 s.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The control plane's address on the nodes' network (`switch.sh`).
pub(super) const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 199, 0, 1));
/// Port of the API on the nodes' network. It equals the port of the service, so that no translation
/// is needed.
pub(super) const SERVICE_PORT: u16 = 443;
/// Addresses of services. Nothing listens there.
const SERVICES: &str = "10.96.0.0/16";
/// Request rates of both clients. The defaults delay a start by 5 s.
const CLIENT_RATE: [&str; 2] = ["--kube-api-qps=500", "--kube-api-burst=1000"];
/// Starts with another port if another process takes the port first.
const PORTS_TRIED: usize = 3;

/// Policy of the audit log, in the directory of a control plane. Without the file there is no log.
pub const AUDIT_POLICY: &str = "audit.yaml";
/// The audit log there, one event on each line.
pub const AUDIT_LOG: &str = "log/audit.log";

/// Components of a control plane to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// etcd and the API server.
    Api,
    /// The controllers and the scheduler too.
    Full,
}

/// A running control plane. With [`Lifetime::WithUs`] dropping it ends everything.
#[derive(Debug)]
pub struct ControlPlane {
    dir: PathBuf,
    programs: Programs,
    life: Lifetime,
    url: String,
    attachment: Attachment,
    pub(super) pki: Option<Pki>,
    running: BTreeMap<Part, (Child, Known)>,
}

/// Network of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attachment {
    /// On this machine's loopback, on a port that was free.
    Loopback,
    /// In the namespace of the nodes' network, held by this process.
    Switch(i32),
}

impl ControlPlane {
    /// Starts a control plane in `dir`. Returns when the API answers. With controllers, it also
    /// waits for the service account that pods need.
    ///
    /// # Errors
    ///
    /// If a component ends or is not ready in time. The message holds the end of its log.
    pub async fn start(programs: Programs, dir: &Path, tier: Tier, life: Lifetime) -> Result<Self> {
        let mut plane = Self::new(programs, dir, life)?;
        plane.bring_up(tier).await?;
        Ok(plane)
    }

    /// A control plane without running components.
    pub(super) fn new(programs: Programs, dir: &Path, life: Lifetime) -> Result<Self> {
        install_crypto();
        for part in ["", "pki", "log"] {
            private_dir(&dir.join(part))?;
        }
        Ok(Self {
            dir: dir
                .canonicalize()
                .with_context(|| format!("cannot open {}", dir.display()))?,
            programs,
            life,
            url: String::new(),
            attachment: Attachment::Loopback,
            pki: None,
            running: BTreeMap::new(),
        })
    }

    async fn bring_up(&mut self, tier: Tier) -> Result<()> {
        self.start_part(Part::Etcd, &etcd_flags())?;
        self.start_api().await?;
        if tier == Tier::Full {
            self.start_part(Part::Controllers, &controller_flags())?;
            self.start_scheduler(None)?;
            self.until_usable().await?;
        }
        Ok(())
    }

    /// Starts all components on the nodes' network. `relay` starts the relay to it and returns its
    /// address.
    pub(super) async fn bring_up_on(
        &mut self,
        switch: i32,
        relay: impl FnOnce(&mut Self) -> Result<SocketAddr>,
    ) -> Result<()> {
        self.attachment = Attachment::Switch(switch);
        let address = relay(self)?;
        self.url = format!("https://{address}");
        self.make_pki(&[address.ip(), GATEWAY])?;
        self.start_part(Part::Etcd, &etcd_flags())?;
        self.start_part(Part::ApiServer, &self.api_flags(SERVICE_PORT))?;
        self.until_ready().await?;
        let mut controllers = controller_flags();
        controllers.retain(|flag| !flag.starts_with("--node-monitor-grace-period"));
        self.start_part(Part::Controllers, &controllers)?;
        self.start_scheduler(None)?;
        self.until_usable().await
    }

    /// Directory of its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Kubeconfig of a user with all rights.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// Kubeconfig with a token.
    #[must_use]
    pub fn token_kubeconfig(&self, token: &str) -> String {
        let ca = self.dir.join("pki/ca.crt");
        token_kubeconfig(&self.url, &ca.display().to_string(), token)
    }

    /// Kubeconfig with a token, for a program in a node.
    #[must_use]
    pub fn token_kubeconfig_of_nodes(&self, token: &str) -> String {
        token_kubeconfig(&self.url_of_parts(), "/cluster/pki/ca.crt", token)
    }

    /// Creates a ready node with this capacity. Nothing runs on it.
    ///
    /// # Errors
    ///
    /// If the API refuses it.
    pub async fn node(&self, name: &str, cpus: u32, gib: u32) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let amount = json!({"cpu": cpus, "memory": format!("{gib}Gi"), "pods": 1000,
            "neonvm/kvm": 1000, "neonvm/vhost-net": 1000});
        let labels = json!({"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64"});
        let node = json!({"metadata": {"name": name, "labels": labels},
            "status": {"capacity": amount, "allocatable": amount,
                "conditions": [{"type": "Ready", "status": "True", "reason": "Made", "message": "by hand"}]}});
        let node = serde_json::from_value(node)?;
        nodes.create(&PostParams::default(), &node).await?;
        // Admission taints new nodes. The missing controllers would remove the taint.
        let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
        nodes
            .patch(name, &PatchParams::default(), &untainted)
            .await?;
        Ok(())
    }

    /// A client that may do everything.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<kube::Client> {
        client_of(&self.kubeconfig()).await
    }

    /// A client in the network of the cluster's components.
    pub(super) async fn client_of_parts(&self) -> Result<kube::Client> {
        let mut config = config_of(&self.kubeconfig()).await?;
        config.cluster_url = self.url_of_parts().parse()?;
        Ok(kube::Client::try_from(config)?)
    }

    /// Makes a namespace in which pods can be made, with controllers or without.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn namespace(&self, name: &str) -> Result<()> {
        let client = self.client().await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let named = |name: &str| ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        };
        let namespace = Namespace {
            metadata: named(name),
            ..Namespace::default()
        };
        made(namespaces.create(&PostParams::default(), &namespace).await)?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, name);
        let account = ServiceAccount {
            metadata: named("default"),
            ..ServiceAccount::default()
        };
        made(accounts.create(&PostParams::default(), &account).await)
    }

    /// Applies our definitions and waits until they are served.
    ///
    /// # Errors
    ///
    /// If `kubectl` fails.
    pub fn install_kinds(&self) -> Result<()> {
        let folder = crate::checkout().join("deploy/crds");
        self.ask(&["apply", "--kustomize", &folder.to_string_lossy()])?;
        self.until_established()
    }

    /// Waits until every definition there is is served.
    ///
    /// # Errors
    /// When one is not in time.
    pub fn until_established(&self) -> Result<()> {
        until_established(&["crds", "--all"], |args| self.ask(args))
    }

    /// Runs `kubectl` and returns its output.
    ///
    /// # Errors
    ///
    /// If it fails. The message holds its error.
    pub fn ask(&self, args: &[&str]) -> Result<String> {
        let output = self.kubectl().args(args).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("kubectl {}: {text}", args.join(" "));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Applies objects that are written here.
    ///
    /// # Errors
    /// When `kubectl` fails.
    pub fn apply(&self, objects: &str) -> Result<()> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(objects.as_bytes())?;
        let path = file.path().display().to_string();
        self.ask(&["apply", "--filename", &path]).map(drop)
    }

    /// Has the server admit objects that it does not keep.
    ///
    /// # Errors
    /// When `kubectl` fails.
    pub fn dry_run(&self, objects: &str) -> Result<()> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(objects.as_bytes())?;
        let path = file.path().display().to_string();
        let words = ["apply", "--dry-run=server", "--filename", &path];
        self.ask(&words).map(drop)
    }

    /// `kubectl` of the same version, for this cluster.
    #[must_use]
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.programs.path("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--cache-dir")
            .arg(self.dir.join("kubectl-cache"))
            .stdin(Stdio::null());
        command
    }

    /// Starts kube-scheduler: by a configuration file, or as it comes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_scheduler(&mut self, config: Option<&Path>) -> Result<()> {
        let mut flags = vec!["--secure-port=0".to_owned()];
        match config {
            Some(file) => flags.push(format!("--config={}", file.display())),
            None => {
                flags.extend(
                    ["--kubeconfig=scheduler.kubeconfig", "--leader-elect=false"]
                        .map(str::to_owned),
                );
                flags.extend(CLIENT_RATE.map(str::to_owned));
            }
        }
        self.start_part(Part::Scheduler, &flags)
    }

    /// Kills a part.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill(&mut self, part: Part) -> Result<()> {
        if let Some((mut child, _)) = self.running.remove(&part) {
            child.kill()?;
            child.wait()?;
            self.write_record()?;
        }
        Ok(())
    }

    async fn start_api(&mut self) -> Result<()> {
        for left in (0..PORTS_TRIED).rev() {
            let port = TcpListener::bind((LOOPBACK, 0))?.local_addr()?.port();
            self.url = format!("https://{LOOPBACK}:{port}");
            self.make_pki(&[LOOPBACK])?;
            self.start_part(Part::ApiServer, &self.api_flags(port))?;
            match self.until_ready().await {
                Err(_)
                    if left > 0
                        && self
                            .log_of(Part::ApiServer)
                            .contains("address already in use") =>
                {
                    self.kill(Part::ApiServer)?;
                }
                ended => return ended,
            }
        }
        bail!("no port of {LOOPBACK} stays free")
    }

    /// Certificates and kubeconfigs: the admin's for this machine, the others' for where they run.
    fn make_pki(&mut self, addresses: &[IpAddr]) -> Result<()> {
        let pki = Pki::make(&self.dir.join("pki"), addresses)?;
        let inner = self.url_of_parts();
        for (who, url) in [
            ("admin", &self.url),
            ("controllers", &inner),
            ("scheduler", &inner),
        ] {
            let path = self.dir.join(format!("{who}.kubeconfig"));
            private_file(&path, &pki.kubeconfig(who, url)?)?;
        }
        self.pki = Some(pki);
        Ok(())
    }

    /// URL of the API in the network of the cluster's components.
    pub(super) fn url_of_parts(&self) -> String {
        match self.attachment {
            Attachment::Loopback => self.url.clone(),
            Attachment::Switch(_) => format!("https://{GATEWAY}:{SERVICE_PORT}"),
        }
    }

    fn api_flags(&self, port: u16) -> Vec<String> {
        let mut flags = api_flags(self.attachment, port);
        if self.dir.join(AUDIT_POLICY).is_file() {
            flags.push(format!("--audit-policy-file={AUDIT_POLICY}"));
            flags.push(format!("--audit-log-path={AUDIT_LOG}"));
        }
        flags
    }

    fn start_part(&mut self, part: Part, flags: &[String]) -> Result<()> {
        let mut words: Vec<OsString> = Vec::new();
        if let Attachment::Switch(pid) = self.attachment {
            words.extend(["sh".into(), self.dir.join("part.sh").into()]);
            words.extend([group(&self.dir).into(), part.program().into()]);
            words.push(part.milli_cpu().to_string().into());
            words.extend(["nsenter".into(), format!("--net=/proc/{pid}/ns/net").into()]);
        }
        words.push(self.programs.path(part.program()).into());
        words.extend(flags.iter().map(OsString::from));
        self.start_command(part, &words).map(|_| ())
    }

    /// Starts a component by its command line, and returns its PID.
    pub(super) fn start_command(&mut self, part: Part, words: &[OsString]) -> Result<i32> {
        let mut child = spawn(&self.dir, part.program(), self.life, words)?;
        match Known::of(part, child.id()) {
            Ok(known) => {
                self.running.insert(part, (child, known));
                self.write_record()?;
                Ok(known.pid)
            }
            Err(error) => {
                child.wait()?;
                Err(error.context(self.log_of(part)))
            }
        }
    }

    fn write_record(&self) -> Result<()> {
        let known: Vec<Known> = self.running.values().map(|(_, known)| *known).collect();
        record::write(&self.dir, &known)
    }

    /// Waits until the API server is ready.
    async fn until_ready(&self) -> Result<()> {
        let client = self.client().await?;
        wait_for("a ready API server", PATIENCE, || async {
            if !self.runs(Part::ApiServer) {
                return Ok(false);
            }
            let request = http_get("/readyz")?;
            let answer = client.request_text(request).await;
            answer.map(|_| true).map_err(|error| error.to_string())
        })
        .await
        .and_then(|ready| if ready { Ok(()) } else { bail!("it ended") })
        .with_context(|| format!("kube-apiserver: {}", self.log_of(Part::ApiServer)))
    }

    /// Until pods can be made.
    async fn until_usable(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        wait_for("the default service account", PATIENCE, || async {
            if let Some(part) = self.ended() {
                return Err(format!("{} ended: {}", part.program(), self.log_of(part)));
            }
            let found = accounts.get_opt("default").await;
            found
                .map_err(|error| error.to_string())?
                .ok_or_else(|| "there is none".to_owned())
        })
        .await
        .map(|_| ())
    }

    /// A part that was started and does not run any more.
    pub(super) fn ended(&self) -> Option<Part> {
        let mut running = self.running.iter();
        let ended = running.find(|(_, (_, known))| !known.runs());
        ended.map(|(part, _)| *part)
    }

    fn runs(&self, part: Part) -> bool {
        let known = self.running.get(&part);
        known.is_some_and(|(_, known)| known.runs())
    }

    /// The end of a part's log.
    #[must_use]
    pub fn log_of(&self, part: Part) -> String {
        let path = self.dir.join("log").join(format!("{}.log", part.program()));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if self.life == Lifetime::OnTheirOwn {
            return;
        }
        // Clients end first. A process that cannot be killed has ended.
        while let Some((_, (mut child, _))) = self.running.pop_last() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Empty ones that stay are swept by the next cluster.
        let _ = remove_groups(&self.dir);
    }
}

/// An object that exists already counts as created.
fn made<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => Ok(other.map(|_| ())?),
    }
}

fn http_get(path: &str) -> Result<Request<Vec<u8>>, String> {
    let request = Request::get(path).body(Vec::new());
    request.map_err(|error| error.to_string())
}

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

/// etcd listens on unix sockets alone; it writes them as host and port, and makes the file of that
/// name in its directory.
fn etcd_flags() -> Vec<String> {
    owned(&[
        "--data-dir=etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
        "--listen-client-urls=unix://etcd-c:0",
        "--advertise-client-urls=unix://etcd-c:0",
        "--listen-peer-urls=unix://etcd-p:0",
        "--initial-advertise-peer-urls=unix://etcd-p:0",
        "--initial-cluster=default=unix://etcd-p:0",
    ])
}

fn api_flags(attachment: Attachment, port: u16) -> Vec<String> {
    let mut flags = owned(&[
        "--etcd-servers=unix://etcd-c:0",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
        "--client-ca-file=pki/ca.crt",
        "--tls-cert-file=pki/apiserver.crt",
        "--tls-private-key-file=pki/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=pki/sa.pub",
        "--service-account-signing-key-file=pki/sa.key",
        "--kubelet-client-certificate=pki/kubelet-client.crt",
        "--kubelet-client-key=pki/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--requestheader-client-ca-file=pki/ca.crt",
        // Webhooks are dialled at their pods: there is no kube-proxy where it runs.
        "--enable-aggregator-routing=true",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--proxy-client-cert-file=pki/front-proxy.crt",
        "--proxy-client-key-file=pki/front-proxy.key",
    ]);
    match attachment {
        Attachment::Loopback => {
            flags.push(format!("--bind-address={LOOPBACK}"));
            // A loopback address is no legal endpoint of a service.
            flags.push("--endpoint-reconciler-type=none".to_owned());
        }
        Attachment::Switch(_) => {
            flags.push("--bind-address=0.0.0.0".to_owned());
            flags.push(format!("--advertise-address={GATEWAY}"));
        }
    }
    flags.push(format!("--secure-port={port}"));
    flags.push(format!("--service-cluster-ip-range={SERVICES}"));
    flags
}

fn controller_flags() -> Vec<String> {
    let mut flags = owned(&[
        "--kubeconfig=controllers.kubeconfig",
        "--secure-port=0",
        "--leader-elect=false",
        "--service-account-private-key-file=pki/sa.key",
        "--root-ca-file=pki/ca.crt",
        "--use-service-account-credentials=true",
        "--cluster-signing-cert-file=pki/ca.crt",
        "--cluster-signing-key-file=pki/ca.key",
        "--allocate-node-cidrs=false",
        // Nodes made by hand have no kubelet whose heartbeat could fail to come.
        "--node-monitor-grace-period=24h",
    ]);
    flags.extend(CLIENT_RATE.map(str::to_owned));
    flags
}

/// Waits until definitions are served. `kubectl wait` by itself fails for one that has no status at
/// all yet.
pub(crate) fn until_established(
    definitions: &[&str],
    kubectl: impl Fn(&[&str]) -> Result<String>,
) -> Result<()> {
    let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
    let args = [&wait[..], definitions].concat();
    let began = Instant::now();
    loop {
        match kubectl(&args) {
            Ok(_) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE => return Err(error),
            Err(_) => std::thread::park_timeout(POLL_INTERVAL),
        }
    }
}

fn token_kubeconfig(url: &str, ca: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: cluster\n\
         clusters: [{{name: cluster, cluster: {{server: \"{url}\", certificate-authority: \"{ca}\"}}}}]\n\
         users: [{{name: account, user: {{token: \"{token}\"}}}}]\n\
         contexts: [{{name: cluster, context: {{cluster: cluster, user: account}}}}]\n"
    )
}
