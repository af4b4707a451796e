//! A running `bellows web`, and a browser by hand that sends its requests.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use protocol::annotations::{ANNOTATION_POWER_STATE, POWER_STOPPED};
use serde_json::json;
use test_network::http::Request;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::bellows_bin;
use crate::patience::wait_for;
use crate::site::{Site, postgres_vm};

/// Bound of a page of a thousand VMs, bytes.
pub const PAGE_BYTES: usize = 100 << 10;
/// VMs that are made at once.
const AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);
const POLICY: &str = "return function(i) return { hold = true, reason = \"x\" } end\n";

/// A running `bellows web`, and a browser that has not opened the link yet.
pub struct Web {
    _child: Child,
    /// Address that it listens on.
    pub address: SocketAddr,
    /// Path of the link that works once.
    pub link: String,
    /// Header line of the cookie. Empty before the link was opened.
    pub cookie: String,
}

impl Web {
    /// A server on a site.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn start(site: &Site) -> Result<Self> {
        Self::spawn("--state-dir", site.state_dir()).await
    }

    async fn spawn(option: &str, value: &Path) -> Result<Self> {
        let mut child = Command::new(bellows_bin())
            .args(["web", option])
            .arg(value)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().context("bellows web has no stdout")?;
        let mut lines = BufReader::new(output).lines();
        let line = lines.next_line().await?.context("no link")?;
        let (_, url) = line.split_once("http://").context(line.clone())?;
        let (address, link) = url.split_once('/').context(line.clone())?;
        Ok(Self {
            _child: child,
            address: address.parse()?,
            link: format!("/{link}"),
            cookie: String::new(),
        })
    }

    /// A server whose link was opened.
    ///
    /// # Errors
    ///
    /// If it does not start, or gives no cookie.
    pub async fn opened(site: &Site) -> Result<Self> {
        Self::start(site).await?.enter().await
    }

    /// A server about a cluster, whose link was opened.
    ///
    /// # Errors
    ///
    /// If it does not start, or gives no cookie.
    pub async fn of_cluster(kubeconfig: &Path) -> Result<Self> {
        Self::spawn("--kubeconfig", kubeconfig).await?.enter().await
    }

    async fn enter(self) -> Result<Self> {
        let mut web = self;
        let answer = web.get(&web.link).await?;
        let line = answer.lines().find(|line| line.starts_with("set-cookie: "));
        let cookie = line
            .context("no cookie")?
            .trim_start_matches("set-cookie: ");
        ensure!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"));
        let value = cookie.split(';').next().unwrap_or_default();
        web.cookie = format!("Cookie: {value}\r\n");
        Ok(web)
    }

    /// Sends a request, and returns the whole answer.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn ask(&self, line: &str, head: &str, body: &str) -> Result<String> {
        let head = format!("{}{head}", self.cookie);
        let request = Request {
            line,
            head: &head,
            body,
        };
        Ok(request.ask(self.address).await?)
    }

    /// Reads a page.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn get(&self, path: &str) -> Result<String> {
        self.ask(&format!("GET {path}"), "", "").await
    }

    /// Sends a form.
    ///
    /// # Errors
    ///
    /// If no answer comes.
    pub async fn post(&self, path: &str, body: &str) -> Result<String> {
        let head = "Content-Type: application/x-www-form-urlencoded\r\n";
        self.ask(&format!("POST {path}"), head, body).await
    }

    /// A page's text, without its tags.
    ///
    /// # Errors
    ///
    /// If the page is not there or too large.
    pub async fn text(&self, path: &str) -> Result<String> {
        let page = self.get(path).await?;
        ensure!(status(&page) == 200, "{path}: {page}");
        ensure!(page.len() < PAGE_BYTES, "{path}: {} bytes", page.len());
        let mut text = String::new();
        for part in page.split('<').skip(1) {
            let said = part.split_once('>').map_or("", |(_, said)| said);
            text.push_str(said);
            text.push(' ');
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(words.join(" "))
    }

    /// The hidden fields of the form at a path, as they are sent.
    ///
    /// # Errors
    ///
    /// If the page has no form.
    pub async fn fields(&self, path: &str) -> Result<String> {
        let page = self.get(path).await?;
        let field = |name: &str| {
            let begin = format!("name=\"{name}\" value=\"");
            let (_, value) = page.split_once(&begin).context(page.clone())?;
            let value = value.split('"').next().unwrap_or_default();
            anyhow::Ok(format!("{name}={value}"))
        };
        Ok(format!("{}&{}", field("key")?, field("token")?))
    }
}

/// Status of an answer. 0 if it has none.
#[must_use]
pub fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).unwrap_or_default();
    code.parse().unwrap_or_default()
}

/// A site with a VM that has no image, and a policy.
///
/// # Errors
///
/// If one of them cannot be made.
pub async fn site() -> Result<Site> {
    let site = Site::fresh().await?;
    let mut vm = postgres_vm("pg", (250, 250, 1000), (1, 1, 4), true);
    vm["spec"]["guest"]["rootDisk"]["image"] = json!("bellows/none:0");
    site.create(&vm).await?;
    let source = site.state_dir().join("db.lua");
    std::fs::write(&source, POLICY)?;
    let source = source.to_str().context("a path of text")?;
    let apply = [
        "policy", "apply", source, "--name", "db", "--reason", "a try",
    ];
    site.bellows(&apply).await?;
    Ok(site)
}

/// Makes the set `web` of two VMs that have no image, and waits until its page shows them.
///
/// # Errors
///
/// If it cannot be made, or is not shown.
pub async fn add_set(site: &Site, web: &Web) -> Result<()> {
    let create = [
        "vmset",
        "create",
        "web",
        "--image",
        "bellows/none:0",
        "--replicas",
        "2",
        "--cpu-max",
        "1",
        "--memory-max",
        "1Gi",
        "--no-autoscale",
    ];
    site.bellows(&create).await?;
    wait_for("both members on the page of the set", PATIENCE, || async {
        let page = web.get("/sets/default/web").await;
        let page = page.map_err(|error| error.to_string())?;
        let is_there = ["0", "1"]
            .iter()
            .all(|one| page.contains(&format!("/vms/default/web-{one}")));
        is_there.then_some(()).ok_or(page)
    })
    .await
}

/// A site with stopped VMs, and its pages once they show all VMs. No VM has a pod.
///
/// # Errors
///
/// If one of them cannot be made, or is not shown.
pub async fn site_of(vms: usize) -> Result<(Site, Web)> {
    let site = Site::fresh().await?;
    let made = stream::iter(0..vms).map(|number| {
        let mut vm = postgres_vm(
            &format!("vm-{number:04}"),
            (250, 250, 1000),
            (1, 1, 4),
            true,
        );
        vm["spec"]["guest"]["rootDisk"]["image"] = json!("bellows/none:0");
        vm["metadata"]["annotations"] = json!({ANNOTATION_POWER_STATE: POWER_STOPPED});
        let vms = site.vms();
        async move { vms.create(&vm).await }
    });
    let made: Vec<()> = made.buffer_unordered(AT_ONCE).try_collect().await?;
    let web = Web::opened(&site).await?;
    let range = format!(" of {}", made.len());
    wait_for("all VMs on the page", PATIENCE, || async {
        let page = web.get("/vms").await.map_err(|error| error.to_string())?;
        if page.contains(&range) {
            Ok(())
        } else {
            Err(page)
        }
    })
    .await?;
    Ok((site, web))
}
