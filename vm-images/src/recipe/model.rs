//! A checked recipe and its parts.

use std::collections::BTreeMap;

use protocol::image::Digest;
use serde::Serialize;

/// A recipe that has passed all checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Name of the image, for example `bellows/postgres:15`.
    pub name: String,
    /// One line for `bellows image`.
    pub description: String,
    /// SHA-256 of the recipe's text.
    pub sha256: Digest,
    /// Debian packages of the image.
    pub debian: DebianRecipe,
    /// Paths that are removed from the unpacked packages. `*` matches any characters but `/`.
    pub prune: Vec<String>,
    /// Guest or runtime, with its settings.
    pub content: RecipeContent,
}

/// Kind of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipeContent {
    /// A guest that QEMU boots.
    Guest(Box<GuestRecipe>),
    /// Programs for the host, with all libraries that they need.
    Runtime(RuntimeRecipe),
}

/// Debian packages and their releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DebianRecipe {
    /// Releases that the image can be built from. The host's release is used if listed, else the
    /// last one.
    pub suites: Vec<SuiteRecipe>,
    /// Packages. Their dependencies are added.
    pub packages: Vec<String>,
    /// Packages that are treated as installed. They and their own dependencies are not downloaded.
    pub assume_installed: Vec<String>,
    /// Whether to use security updates, if the host's apt configuration names such an archive.
    pub security_updates: bool,
}

/// A Debian release that the packages can come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SuiteRecipe {
    /// Code name, for example `bookworm`.
    pub name: String,
    /// A second suite with a higher priority, for example `bookworm-backports`.
    pub prefer: Option<String>,
}

/// Settings of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GuestRecipe {
    /// Size of the root disk in MiB.
    pub disk_mib: u32,
    /// Modules and command lines of the guest's kernel.
    pub kernel: KernelRecipe,
    /// Host name. The kernel command line overrides it.
    pub hostname: String,
    /// TCP ports of the guest's services.
    pub ports: Vec<PortRecipe>,
    /// Kernel settings applied at boot.
    pub sysctl: BTreeMap<String, String>,
    /// System users beyond Debian's own.
    pub users: Vec<UserRecipe>,
    /// Database that the build creates.
    pub postgres: Option<PostgresRecipe>,
    /// Programs that init keeps running.
    pub services: Vec<ServiceRecipe>,
    /// Programs of this project, added in the last step.
    pub binaries: Vec<BinaryRecipe>,
    /// Line that the console prints when the guest is ready.
    pub ready_line: String,
}

/// Modules and command lines of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelRecipe {
    /// Modules in the initial RAM disk.
    pub boot_modules: Vec<String>,
    /// Modules that are loaded after the root file system is mounted, in this order.
    pub modules: Vec<String>,
    /// Modules that a service loads later, in this order.
    pub late_modules: Vec<String>,
    /// Command line for every accelerator.
    pub cmdline: String,
    /// Appended to the command line under TCG.
    pub cmdline_tcg: String,
}

/// A TCP port of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PortRecipe {
    /// Name of the service that listens, for example `postgres`.
    pub name: String,
    /// TCP port in the guest, 1 to 65535.
    pub port: u16,
}

/// A system user with a group of the same name and number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UserRecipe {
    /// Name of the user and of the group.
    pub name: String,
    /// User and group number, 100 to 999.
    pub id: u32,
    /// Home directory, an absolute path; `/nonexistent` if the recipe names none.
    pub home: String,
}

/// A PostgreSQL database that the build creates in the guest's root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PostgresRecipe {
    /// Major version of PostgreSQL, 13 to 18.
    pub version: u32,
    /// Cgroup under the guest's root that holds the server.
    pub cgroup: String,
    /// pgbench scale of the database `bench`. 0 creates none.
    pub bench_scale: u32,
    /// Server settings by name. Each value is one line.
    pub settings: BTreeMap<String, String>,
    /// Role of the monitor, if it has one.
    pub monitor: Option<RoleRecipe>,
}

/// A database role that may change some server settings and reload them, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoleRecipe {
    /// Name of the role: `a-z`, `0-9` and `_`, at most 63 characters, no digit first.
    pub name: String,
    /// User of the guest that may log in with the role through the socket.
    pub user: String,
    /// Settings that the role may change with `ALTER SYSTEM SET`.
    pub settings: Vec<String>,
}

/// A program that init keeps running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceRecipe {
    /// Name of the service in the log.
    pub name: String,
    /// Absolute path of the program, and its arguments.
    pub command: Vec<String>,
    /// User that runs it.
    pub user: String,
    /// Cgroup below the guest's root.
    pub cgroup: String,
    /// Directory that is created before each start.
    pub directory: Option<String>,
    /// Existing files that are given to the user before each start.
    pub owns: Vec<String>,
    /// Whether to start it only when the guest is ready, or after a minute. The boot is faster
    /// then.
    pub after_ready: bool,
}

/// A program of this project in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BinaryRecipe {
    /// File name in the directory given to the build.
    pub name: String,
    /// Path in the guest.
    pub path: String,
}

/// Settings of a runtime image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuntimeRecipe {
    /// Lowest accepted major version of QEMU.
    pub qemu_at_least: u32,
    /// Paths of programs in the packages. Each gets a wrapper.
    pub programs: Vec<String>,
    /// Paths that are kept beside the programs and their libraries. `*` matches as in `prune`.
    pub keep: Vec<String>,
    /// Directories of QEMU's firmware search path, in order.
    pub firmware: Vec<String>,
    /// Directory of QEMU's loadable modules. Their libraries are kept, too.
    pub modules: String,
}

impl DebianRecipe {
    /// The release to build from on a host with release `host`.
    #[must_use]
    pub fn suite_for(&self, host: Option<&str>) -> Option<&SuiteRecipe> {
        self.suites
            .iter()
            .find(|s| Some(s.name.as_str()) == host)
            .or_else(|| self.suites.last())
    }
}

impl Recipe {
    /// Settings of the guest. `None` for a runtime.
    #[must_use]
    pub fn guest(&self) -> Option<&GuestRecipe> {
        match &self.content {
            RecipeContent::Guest(guest) => Some(guest),
            RecipeContent::Runtime(_) => None,
        }
    }
}
