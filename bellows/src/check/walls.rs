//! Whether this machine supports the walls between guests and itself. `bellows status` shows the
//! walls of running guests.

use std::process::Stdio;

use neonvm_runner::node::{rules_refused, sandbox_refused};
use tokio::process::Command;

use super::finding::Finding;

const NOT_ROOT: &str = "not root";
const BE_ROOT: &str = "run bellows up as root";

/// Runs all checks of walls.
pub(super) async fn all() -> Vec<Finding> {
    vec![
        user_namespaces().await,
        rules().await,
        sandbox(),
        image_programs(),
    ]
}

/// User namespaces, which passt needs, and QEMU if it runs for an ordinary user.
async fn user_namespaces() -> Finding {
    let name = "user namespaces";
    // As passt does. For root's own user the kernel allows more.
    let as_other = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "true"];
    let before = if nix::unistd::geteuid().is_root() {
        &as_other[..]
    } else {
        &[]
    };
    match failure(&[before, &unshare].concat()).await {
        None => Finding::ok(name, "allowed"),
        Some(why) => Finding::missing(
            name,
            why,
            "passt, which connects guests and keeps them from this machine, shuts itself into one",
            "sysctl -w user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 \
             kernel.apparmor_restrict_unprivileged_userns=0 (those that there are); \
             or bellows up --guest-network=user, without that wall",
        ),
    }
}

/// Whether the kernel accepts the packet filter rules for guests' users.
async fn rules() -> Finding {
    let name = "wall: kernel rules";
    let needed = "the kernel refuses guests' processes whatever belongs to this machine, also after an escape from QEMU";
    if !nix::unistd::geteuid().is_root() {
        return Finding::degraded(name, NOT_ROOT, needed, BE_ROOT);
    }
    match rules_refused().await {
        None => Finding::ok(name, "nftables with conntrack and fib"),
        Some(why) => Finding::degraded(
            name,
            why,
            needed,
            "apt-get install nftables; load nf_tables, nft_ct, nft_fib_inet and nft_reject_inet",
        ),
    }
}

/// Whether QEMU can have its own user, namespaces and root directory.
fn sandbox() -> Finding {
    let name = "wall: sandbox of QEMU";
    let needed = "QEMU has a user, namespaces and a root directory of its own, so that an escape from it finds nothing";
    if !nix::unistd::geteuid().is_root() {
        return Finding::degraded(name, NOT_ROOT, needed, BE_ROOT);
    }
    match sandbox_refused() {
        None => Finding::ok(name, "user, namespaces and root directory of its own"),
        Some(why) => Finding::degraded(
            name,
            why,
            needed,
            "run bellows up outside a container, or in one with the capability SYS_ADMIN",
        ),
    }
}

/// Whether image builds can confine programs of an image. Without that, such builds are refused.
fn image_programs() -> Finding {
    let name = "wall: image builds";
    let needed =
        "RUN lines and other programs of an image run in a user namespace, or the build is refused";
    if !nix::unistd::geteuid().is_root() {
        return Finding::degraded(name, NOT_ROOT, needed, "run bellows image build as root");
    }
    match vm_images::sandbox_refused() {
        None => Finding::ok(name, "bubblewrap in a user namespace"),
        Some(why) => Finding::degraded(
            name,
            why,
            needed,
            "apt-get install bubblewrap; sysctl -w user.max_user_namespaces=10000 \
             kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 \
             (those that there are)",
        ),
    }
}

/// Why a program fails. `None` if it succeeds.
async fn failure(words: &[&str]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let run = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    match run.await {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().next().unwrap_or_default();
            let text = format!("{program}: {} {line}", output.status);
            Some(text.trim().to_owned())
        }
        Err(error) => Some(format!("{program}: {error}")),
    }
}
