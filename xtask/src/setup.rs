//! What a fresh Debian machine needs, found by looking for the programs themselves.

use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// Which command asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Build,
    /// Compiling, images, a guest, load and plots.
    Everything,
}

/// A program and the Debian package that carries it.
struct Tool {
    /// Program on the PATH, or an absolute path that must exist.
    program: &'static str,
    package: &'static str,
    build: bool,
}

const TOOLS: [Tool; 26] = [
    Tool {
        program: "cc",
        package: "gcc",
        build: true,
    },
    // Compiles the interpreter of policies.
    Tool {
        program: "g++",
        package: "g++",
        build: true,
    },
    Tool {
        program: "ld",
        package: "binutils",
        build: true,
    },
    // The agent's allocator is built by it.
    Tool {
        program: "make",
        package: "make",
        build: true,
    },
    Tool {
        program: "/usr/include/stdio.h",
        package: "libc6-dev",
        build: true,
    },
    // Judges the unit of the monitor's package.
    Tool {
        program: "systemd-analyze",
        package: "systemd",
        build: false,
    },
    Tool {
        program: "rpmbuild",
        package: "rpm",
        build: false,
    },
    Tool {
        program: "mmdebstrap",
        package: "mmdebstrap",
        build: false,
    },
    Tool {
        program: "ip",
        package: "iproute2",
        build: false,
    },
    // Is in the runner's image, too.
    Tool {
        program: "nft",
        package: "nftables",
        build: false,
    },
    // Keeps programs of images apart from the machine that builds.
    Tool {
        program: "bwrap",
        package: "bubblewrap",
        build: false,
    },
    Tool {
        program: "mke2fs",
        package: "e2fsprogs",
        build: false,
    },
    Tool {
        program: "depmod",
        package: "kmod",
        build: false,
    },
    Tool {
        program: "cpio",
        package: "cpio",
        build: false,
    },
    Tool {
        program: "zstd",
        package: "zstd",
        build: false,
    },
    Tool {
        program: "/bin/busybox",
        package: "busybox-static",
        build: false,
    },
    Tool {
        program: "faketime",
        package: "faketime",
        build: false,
    },
    Tool {
        program: "psql",
        package: "postgresql-client",
        build: false,
    },
    Tool {
        program: "pgbench",
        package: "postgresql-contrib",
        build: false,
    },
    Tool {
        program: "ssh",
        package: "openssh-client",
        build: false,
    },
    // Runs the client of release metadata in tests, in a folder of its own.
    Tool {
        program: "python3",
        package: "python3-venv",
        build: false,
    },
    // Judges the alerts of the chart.
    Tool {
        program: "promtool",
        package: "prometheus",
        build: false,
    },
    // Shows the pages of `bellows web` to their tests.
    Tool {
        program: "chromium",
        package: "chromium",
        build: false,
    },
    Tool {
        program: "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
        package: "fonts-dejavu-core",
        build: false,
    },
    // Is in the agent's image, too.
    Tool {
        program: "/etc/ssl/certs/ca-certificates.crt",
        package: "ca-certificates",
        build: false,
    },
    Tool {
        program: "/usr/share/keyrings/debian-archive-keyring.gpg",
        package: "debian-archive-keyring",
        build: false,
    },
];

fn present(tool: &Tool) -> bool {
    if tool.program.starts_with('/') {
        return std::path::Path::new(tool.program).exists();
    }
    // Administrators' programs are often not on a user's PATH.
    shell::on_path(tool.program)
        || ["/usr/sbin", "/sbin"]
            .iter()
            .any(|dir| std::path::Path::new(dir).join(tool.program).is_file())
}

/// The Go toolchain's package, if this system's is new enough to build with.
fn packaged_go() -> Option<&'static str> {
    const PACKAGE: &str = "golang-go";
    let policy = Command::new("apt-cache").args(["policy", PACKAGE]).output();
    let policy = String::from_utf8(policy.ok()?.stdout).ok()?;
    let candidate = policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate:"))?;
    // `2:1.24~2`: an epoch, the version, a revision.
    let version = candidate.trim().rsplit(':').next()?;
    let is_enough = crate::cluster::programs::is_enough(&format!("go{version}"));
    if is_enough {
        shell::say("note: Go is not installed; the servers of some tests are built with it");
    }
    is_enough.then_some(PACKAGE)
}

/// Installs what is missing when we are root; else prints the one command that does and fails.
pub(crate) fn ensure(need: Need) -> Result<()> {
    let mut packages: Vec<&str> = TOOLS
        .iter()
        .filter(|tool| (need == Need::Everything || tool.build) && !present(tool))
        .map(|tool| tool.package)
        .collect();
    if need == Need::Everything && !shell::on_path("kubectl") {
        shell::say(
            "note: kubectl is not installed; its black-box tests will install it if the package exists",
        );
        packages.push("kubernetes-client");
    }
    if need == Need::Everything && !crate::cluster::programs::has_go() {
        packages.extend(packaged_go());
    }
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let install = format!(
        "apt-get update && apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    if !std::path::Path::new("/etc/debian_version").exists() {
        bail!(
            "this machine is not Debian; install by hand what these packages carry: {}",
            packages.join(" ")
        );
    }
    if !shell::is_root() {
        bail!("missing packages; run this once, then try again:\n\n    sudo sh -c '{install}'\n");
    }
    shell::run(
        &format!("install {}", packages.join(" ")),
        Command::new("sh")
            .arg("-c")
            .arg(&install)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
    .context("a fresh machine needs these packages")?;
    match TOOLS
        .iter()
        .find(|tool| (need == Need::Everything || tool.build) && !present(tool))
    {
        Some(tool) => bail!(
            "package {} is installed but {} is still missing",
            tool.package,
            tool.program
        ),
        None => Ok(()),
    }
}
