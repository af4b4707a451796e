//! The cores that are mutated, and the tests that must catch their mutants.

use anyhow::{Result, bail};

use super::list::Mutant;

/// A folder of code without I/O, and how to test it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Core {
    pub(super) name: &'static str,
    /// Below the root. The module of the same name is part of the core.
    folder: &'static str,
    /// Arguments that select test targets of the core's package, one list per pass. The first pass
    /// builds one program. Only mutants that survive it are tested by the next one.
    pub(super) passes: &'static [&'static [&'static str]],
    /// Arguments of the test programs.
    pub(super) arguments: &'static [&'static str],
}

const LIB: &[&str] = &["--lib"];

/// Every core. The integration tests named here need no socket and take seconds.
pub(super) const CORES: [Core; 7] = [
    Core {
        name: "agent",
        folder: "agent/src/core",
        passes: &[LIB, &["--test=restart_with_many", "--test=documents"]],
        arguments: &[],
    },
    Core {
        name: "scheduler",
        folder: "scheduler/src/core",
        passes: &[LIB, &["--test=interleavings"]],
        arguments: &[],
    },
    Core {
        name: "monitor",
        folder: "vm-monitor/src/core",
        passes: &[LIB],
        arguments: &[],
    },
    Core {
        name: "runner",
        folder: "neonvm-shim/runner/src/core",
        passes: &[LIB],
        // They need root and QEMU, and hold nothing of the core that its own tests leave out.
        arguments: &["--skip=shell::"],
    },
    Core {
        name: "controller",
        folder: "neonvm-shim/controller/src/core",
        passes: &[LIB],
        arguments: &[],
    },
    Core {
        name: "protocol",
        folder: "protocol/src",
        // Golden files are compared by tests outside the library.
        passes: &[LIB, &["--tests"]],
        arguments: &[],
    },
    Core {
        name: "events",
        folder: "agent/events/src/core",
        passes: &[LIB],
        arguments: &[],
    },
];

/// Bodies of fuzz targets, which tests and the fuzzer run and no program does.
pub(super) const LEFT_OUT: [&str; 2] = ["**/src/fuzz.rs", "**/src/fuzz/**"];

impl Core {
    pub(super) fn holds(&self, mutant: &Mutant) -> bool {
        let below = mutant.file.strip_prefix(self.folder);
        below.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    /// A pattern of cargo-mutants for the files of the core.
    pub(super) fn glob(&self) -> String {
        format!("{}{{.rs,/**}}", self.folder)
    }
}

/// The cores of these names; all without a name.
pub(super) fn chosen(names: &[String]) -> Result<Vec<&'static Core>> {
    for name in names {
        if !CORES.iter().any(|core| core.name == name) {
            let known = CORES.each_ref().map(|core| core.name).join(", ");
            bail!("no core is named {name}; there are {known}");
        }
    }
    let is_chosen = |core: &&Core| names.is_empty() || names.iter().any(|name| name == core.name);
    Ok(CORES.iter().filter(is_chosen).collect())
}
