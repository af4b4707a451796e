//! Recipes: what an image is made of. TOML; the reference is `docs/images.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::image::Digest;
use serde::Serialize;

mod fields;
mod parse;
mod problem;

pub(crate) use parse::is_image_name;
pub use problem::Problem;

/// Recipes that come with the project, by file name.
const BUILTIN: &[&str] = &[
    include_str!("../recipes/postgres-15.toml"),
    include_str!("../recipes/minimal.toml"),
    include_str!("../recipes/qemu.toml"),
];

/// A checked recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The image's name, for example `bellows/postgres:15`.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// SHA-256 of the recipe's text.
    pub sha256: Digest,
    /// Which Debian packages.
    pub debian: DebianRecipe,
    /// Paths removed from the unpacked packages; `*` stands for any run of characters but `/`.
    pub prune: Vec<String>,
    /// What becomes of them.
    pub content: RecipeContent,
}

/// What is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecipeContent {
    /// A bootable guest.
    Guest(Box<GuestRecipe>),
    /// Programs with everything they need, run on the host.
    Runtime(RuntimeRecipe),
}

/// Which packages, from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DebianRecipe {
    /// Releases it can be made from; the host's own if listed, else the last.
    pub suites: Vec<SuiteRecipe>,
    /// Packages, with what they depend on.
    pub packages: Vec<String>,
    /// Packages treated as if they were there, so that neither they nor what only they need is
    /// fetched.
    pub assume_installed: Vec<String>,
    /// Take security updates too, when the host's own apt configuration names such an archive.
    pub security_updates: bool,
}

/// A Debian release that the packages can come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SuiteRecipe {
    /// Code name, for example `bookworm`.
    pub name: String,
    /// A second suite whose versions win, for example `bookworm-backports`.
    pub prefer: Option<String>,
}

/// A bootable guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GuestRecipe {
    /// Size of the root disk in MiB.
    pub disk_mib: u32,
    /// Modules and command lines of the guest's kernel.
    pub kernel: KernelRecipe,
    /// Host name unless the kernel command line names one.
    pub hostname: String,
    /// Who listens where.
    pub ports: Vec<PortRecipe>,
    /// Kernel settings applied at boot.
    pub sysctl: BTreeMap<String, String>,
    /// System users beyond Debian's own.
    pub users: Vec<UserRecipe>,
    /// A database made at build time.
    pub postgres: Option<PostgresRecipe>,
    /// Programs kept running by init.
    pub services: Vec<ServiceRecipe>,
    /// Programs of ours put in at the last step.
    pub binaries: Vec<BinaryRecipe>,
    /// The line that says the guest is ready.
    pub ready_line: String,
}

/// A kernel and its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelRecipe {
    /// Modules in the initial RAM disk.
    pub boot_modules: Vec<String>,
    /// Modules loaded after the root file system is there, in this order.
    pub modules: Vec<String>,
    /// Modules that wait in the guest until a service loads them, in this order.
    pub late_modules: Vec<String>,
    /// Command line for every accelerator.
    pub cmdline: String,
    /// Appended under TCG.
    pub cmdline_tcg: String,
}

/// A TCP port.
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
    /// pgbench scale of the preloaded database `bench`; 0 for none.
    pub bench_scale: u32,
    /// Server settings by name, each value one line.
    pub settings: BTreeMap<String, String>,
    /// The role of the monitor in the guest.
    pub monitor: Option<RoleRecipe>,
}

/// A database role that may change some of the server's settings, reload them, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoleRecipe {
    /// Name of the role: `a-z`, `0-9` and `_`, at most 63 characters, no digit first.
    pub name: String,
    /// The guest's user who may log in as it, through the socket.
    pub user: String,
    /// Settings that it may give to `ALTER SYSTEM SET`.
    pub settings: Vec<String>,
}

/// A program kept running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceRecipe {
    /// Name in the log.
    pub name: String,
    /// Program (absolute path) and arguments.
    pub command: Vec<String>,
    /// Who runs it.
    pub user: String,
    /// Cgroup under the guest's root.
    pub cgroup: String,
    /// Directory made before each start.
    pub directory: Option<String>,
    /// Files given to its user before each start, as far as they are there.
    pub owns: Vec<String>,
    /// Start only when the guest is ready (or a minute has passed), to keep the way there short.
    pub after_ready: bool,
}

/// A program of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BinaryRecipe {
    /// File name in the directory given to the build.
    pub name: String,
    /// Where it goes in the guest.
    pub path: String,
}

/// Programs run on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuntimeRecipe {
    /// Lowest major version of QEMU accepted.
    pub qemu_at_least: u32,
    /// Programs that get a wrapper: paths inside the packages.
    pub programs: Vec<String>,
    /// Paths kept beside the programs and the libraries they need; `*` as in `prune`.
    pub keep: Vec<String>,
    /// Directories given to QEMU as firmware search path, in order.
    pub firmware: Vec<String>,
    /// Directory of QEMU's loadable modules; their libraries are kept too.
    pub modules: String,
}

/// Why a recipe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// Neither a builtin name nor a file.
    #[error("{name:?} is neither a builtin recipe ({}) nor a file: name one of them", builtin.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
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
    /// It is larger than any recipe.
    #[error(
        "the recipe {origin} has {bytes} bytes, the limit is {RECIPE_BYTES}: this is not a recipe"
    )]
    TooLarge {
        /// File or builtin name.
        origin: String,
        /// Length of the recipe's text, above the limit of 256 KiB.
        bytes: usize,
    },
    /// It is not TOML.
    #[error("the recipe {origin} is not TOML: {detail}")]
    Syntax {
        /// File or builtin name.
        origin: String,
        /// The parser's words, with line and column.
        detail: String,
    },
    /// Fields are wrong; all of them are listed.
    #[error("the recipe {origin} has {} problem(s): {}", problems.len(), list(problems))]
    Invalid {
        /// File or builtin name.
        origin: String,
        /// Every problem, in the file's order of sections.
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

/// Longest recipe read: a hundred times the longest known one.
const RECIPE_BYTES: usize = 1 << 18;

impl Recipe {
    /// A builtin recipe by its image name (`bellows/postgres:15`), else a file.
    ///
    /// # Errors
    /// [`RecipeError`]; every problem of the recipe is in it.
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

    /// Reads a recipe's text; `origin` names it in errors.
    ///
    /// # Errors
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

    /// The guest part, if it is a guest.
    #[must_use]
    pub fn guest(&self) -> Option<&GuestRecipe> {
        match &self.content {
            RecipeContent::Guest(guest) => Some(guest),
            RecipeContent::Runtime(_) => None,
        }
    }
}

impl DebianRecipe {
    /// The release to use on a host of release `host`.
    #[must_use]
    pub fn suite_for(&self, host: Option<&str>) -> Option<&SuiteRecipe> {
        self.suites
            .iter()
            .find(|s| Some(s.name.as_str()) == host)
            .or_else(|| self.suites.last())
    }
}

/// The recipes that come with the project.
///
/// # Panics
/// Never: a test reads every one of them.
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
