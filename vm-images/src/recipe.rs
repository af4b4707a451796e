//! Recipes of images, in TOML. Their reference is `docs/images.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::image::Digest;
use serde::Serialize;

mod fields;
mod parse;
mod problem;

pub(crate) use parse::is_image_name;
pub use problem::Problem;

/// Texts of the built-in recipes.
const BUILTIN: &[&str] = &[
    include_str!("../recipes/postgres-15.toml"),
    include_str!("../recipes/minimal.toml"),
    include_str!("../recipes/qemu.toml"),
];

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

/// Why a recipe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The name is neither a built-in recipe nor a file.
    #[error("{name:?} is neither a builtin recipe ({}) nor a file: name one of them", builtin.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of the built-in recipes.
        builtin: Vec<String>,
    },
    /// The file cannot be read.
    #[error("cannot read the recipe {}", path.display())]
    Read {
        /// Path of the recipe's file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The recipe is too long.
    #[error(
        "the recipe {origin} has {bytes} bytes, the limit is {RECIPE_BYTES}: this is not a recipe"
    )]
    TooLarge {
        /// File or name of a built-in recipe.
        origin: String,
        /// Length of the recipe's text, above the limit of 256 KiB.
        bytes: usize,
    },
    /// The recipe is not TOML.
    #[error("the recipe {origin} is not TOML: {detail}")]
    Syntax {
        /// File or name of a built-in recipe.
        origin: String,
        /// Message of the parser, with line and column.
        detail: String,
    },
    /// Fields of the recipe are invalid.
    #[error("the recipe {origin} has {} problem(s): {}", problems.len(), list(problems))]
    Invalid {
        /// File or name of a built-in recipe.
        origin: String,
        /// Every problem, in the order of the recipe's sections.
        problems: Vec<Problem>,
    },
}

fn list(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Longest accepted recipe in bytes: a hundred times the longest known one.
const RECIPE_BYTES: usize = 1 << 18;

impl Recipe {
    /// Loads a built-in recipe by its image name (`bellows/postgres:15`), else a file.
    ///
    /// # Errors
    ///
    /// [`RecipeError`], with every problem of the recipe.
    pub fn load(name_or_path: &str) -> Result<Self, RecipeError> {
        if let Some(text) = builtin_text(name_or_path) {
            return Self::parse(name_or_path, text);
        }
        let path = Path::new(name_or_path);
        if !path.exists() {
            let builtin = builtin_recipes().into_iter().map(|r| r.name).collect();
            return Err(RecipeError::Unknown {
                name: name_or_path.to_owned(),
                builtin,
            });
        }
        let bytes = std::fs::read(path).map_err(|source| RecipeError::Read {
            path: path.to_owned(),
            source,
        })?;
        if bytes.len() > RECIPE_BYTES {
            let origin = name_or_path.to_owned();
            return Err(RecipeError::TooLarge {
                origin,
                bytes: bytes.len(),
            });
        }
        Self::parse(name_or_path, &String::from_utf8_lossy(&bytes))
    }

    /// Parses a recipe. `origin` names it in errors.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Syntax`] or [`RecipeError::Invalid`].
    pub fn parse(origin: &str, text: &str) -> Result<Self, RecipeError> {
        let table = text
            .parse::<toml::Table>()
            .map_err(|error| RecipeError::Syntax {
                origin: origin.to_owned(),
                detail: error.to_string().trim().replace('\n', " "),
            })?;
        parse::recipe(table, crate::digest::of_bytes(text.as_bytes())).map_err(|problems| {
            RecipeError::Invalid {
                origin: origin.to_owned(),
                problems,
            }
        })
    }

    /// Settings of the guest. `None` for a runtime.
    #[must_use]
    pub fn guest(&self) -> Option<&GuestRecipe> {
        match &self.content {
            RecipeContent::Guest(guest) => Some(guest),
            RecipeContent::Runtime(_) => None,
        }
    }
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

/// The built-in recipes.
///
/// # Panics
///
/// Never: a test parses every one of them.
#[must_use]
pub fn builtin_recipes() -> Vec<Recipe> {
    let parse = |text: &&str| Recipe::parse("builtin", text).expect("builtin recipes are tested");
    BUILTIN.iter().map(parse).collect()
}

fn builtin_text(name: &str) -> Option<&'static str> {
    let recipes = builtin_recipes();
    let place = recipes.iter().position(|recipe| recipe.name == name)?;
    BUILTIN.get(place).copied()
}

#[cfg(test)]
mod tests;
