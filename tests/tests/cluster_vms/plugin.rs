//! `kubectl bellows why`, `top` and `history` from an account that has only the rights that their
//! own texts name.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use bellows_tests::bellows_bin;
use serde_json::{Value, json};

use super::World;

/// The account, in namespace `default`.
const ACCOUNT: &str = "asker";
const USER: &str = "system:serviceaccount:default:asker";
/// The exit code of a command whose caller lacks a right.
const NO_RIGHT: i32 = 64;

/// A user: a kubeconfig, and kubectl with the plugin in its search path.
struct Asker {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    path: String,
}

impl Asker {
    /// Makes the account. It may read VMs, pods and nodes.
    fn new(world: &World) -> Result<Self> {
        let plane = world.cluster.plane();
        plane.ask(&["create", "serviceaccount", ACCOUNT])?;
        let resources = "--resource=pods,nodes,virtualmachines.vm.neon.tech";
        let role = ["create", "clusterrole", ACCOUNT, "--verb=get,list"];
        plane.ask(&[&role[..], &[resources]].concat())?;
        let role = format!("--clusterrole={ACCOUNT}");
        let user = format!("--user={USER}");
        plane.ask(&["create", "clusterrolebinding", ACCOUNT, &role, &user])?;
        let token = plane.ask(&["create", "token", ACCOUNT, "--duration=2h"])?;
        let kubeconfig = world.dir.path().join("asker.kubeconfig");
        std::fs::write(&kubeconfig, plane.token_kubeconfig(token.trim()))?;
        let bin = world.dir.path().join("asker-bin");
        std::fs::create_dir(&bin)?;
        std::os::unix::fs::symlink(bellows_bin(), bin.join("kubectl-bellows"))?;
        Ok(Self {
            kubectl: plane.kubectl().get_program().into(),
            kubeconfig,
            path: format!("{}:{}", bin.display(), std::env::var("PATH")?),
        })
    }

    fn ask(&self, args: &[&str]) -> Result<Output> {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl
            .arg("bellows")
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", &self.path);
        Ok(kubectl.output()?)
    }

    fn says(&self, args: &[&str]) -> Result<String> {
        let output = self.ask(args)?;
        ensure!(output.status.success(), "{args:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.says(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| text.clone())
    }
}

/// The state of agents and scheduler is shown through the kubelets' forwarded ports.
pub(super) async fn check(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    // As they are deployed, the agents only observe.
    world.is_sized(true)?;
    let asker = Asker::new(world)?;
    let fix = right_is_missing(&asker)?;
    give(world, &fix)?;
    why(&asker, &vm)?;
    history(&asker)?;
    top(&asker)?;
    world.is_sized(false)
}

/// Without the right the refusal names it, and `top` reports what it cannot show. Returns the text
/// of the refusal.
fn right_is_missing(asker: &Asker) -> Result<String> {
    let refused = asker.ask(&["why", "pg", "--timeout", "0"])?;
    let text = String::from_utf8(refused.stderr)?;
    ensure!(refused.status.code() == Some(NO_RIGHT), "{text}");
    for part in [
        &format!("User \"{USER}\" cannot get resource \"pods/portforward\""),
        "verbs get and create on pods/portforward in namespace kube-system",
    ] {
        ensure!(text.contains(part), "{text}");
    }
    let top = asker.says(&["top", "--once"])?;
    let row = row_of(&top)?;
    ensure!(row.ends_with(" -"), "{top}");
    ensure!(top.contains("no reasons to show"), "{top}");
    Ok(text)
}

/// Runs the commands of the refusal, for the account.
fn give(world: &World, fix: &str) -> Result<()> {
    let lines = fix.lines().map(str::trim);
    let commands: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("kubectl create "))
        .collect();
    ensure!(commands.len() == 2, "{fix}");
    for command in commands {
        let words = command.replace("NAME", USER);
        let args: Vec<&str> = words.split(' ').collect();
        world
            .cluster
            .plane()
            .ask(&[&["create"], &args[..]].concat())?;
    }
    Ok(())
}

/// Checks the size of the VM, the size that its agent wants, and its permit.
fn why(asker: &Asker, vm: &Value) -> Result<()> {
    let text = asker.says(&["why", "pg", "--timeout", "200"])?;
    for part in [
        "default/pg has 0.25 CPU / 1Gi, should have 0.25 CPU / 1Gi",
        "The agent wants ",
        "Votes now, in compute units: ",
    ] {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    let answer = asker.json(&["why", "pg"])?;
    ensure!(answer["node"] == vm["status"]["node"], "{answer}");
    let decision = &answer["decision"];
    let size = json!({"vCPUs": "250m", "mem": "1Gi"});
    ensure!(decision["current"] == size, "{decision}");
    Ok(())
}

fn history(asker: &Asker) -> Result<()> {
    let answer = asker.json(&["history", "pg"])?;
    let decisions = answer["decisions"].as_array().context("a list")?;
    let last = decisions.last().context("a decision")?;
    ensure!(last["at"].is_string(), "{last}");
    ensure!(last["reason"].is_string(), "{last}");
    let text = asker.says(&["history", "pg"])?;
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    ensure!(head.starts_with("AT "), "{text}");
    ensure!(lines.count() >= 1, "{text}");
    Ok(())
}

/// The view has both nodes, and the VM with a reason.
fn top(asker: &Asker) -> Result<()> {
    let top = asker.says(&["top", "--once"])?;
    let nodes = top.lines().filter(|line| line.starts_with("node ")).count();
    ensure!(nodes == 2, "{top}");
    ensure!(top.contains("1 VMs, 1 autoscaled"), "{top}");
    ensure!(!row_of(&top)?.ends_with(" -"), "{top}");
    ensure!(!top.contains("no reasons to show"), "{top}");
    Ok(())
}

/// The line of the VM in a view. Its last column is the reason.
fn row_of(top: &str) -> Result<&str> {
    let mut lines = top.lines();
    let row = lines.find(|line| line.starts_with("default/pg "));
    row.map(str::trim_end).with_context(|| top.to_owned())
}
