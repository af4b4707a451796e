//! Reads `/proc` and `/sys`, and switches CPUs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::core::cpus::{CpuSet, Plan, Switch};
use crate::core::facts::{Facts, Identity, parse_meminfo, parse_uptime};

/// Mount points of the kernel's file systems. Tests pass directories of their own.
#[derive(Debug, Clone)]
pub struct Roots {
    /// Mount point of sysfs: `/sys` in a guest.
    pub sysfs: PathBuf,
    /// Mount point of procfs: `/proc` in a guest.
    pub procfs: PathBuf,
}

/// Errors of the kernel's files.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file, below one of the [`Roots`].
        path: PathBuf,
        /// A file has unexpected content.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} has unexpected content: {content:?}")]
    Content {
        /// First 80 characters of the file.
        path: PathBuf,
        /// First 80 characters of the file.
        content: String,
    },
    /// A CPU could not be switched.
    #[error("cannot write {value} to {path}")]
    Switch {
        /// The `online` file of the CPU.
        path: PathBuf,
        /// Value that was written: `1` or `0`.
        value: &'static str,
        /// Error of the write, as the kernel returned it.
        source: io::Error,
    },
    /// The target needs more switches than there are CPUs.
    #[error("the target needs {missing} more CPUs than can be switched")]
    OutOfCpus {
        /// CPUs by which the target is missed after every possible switch.
        missing: u32,
    },
}

impl Roots {
    fn cpu(&self, file: &str) -> PathBuf {
        self.sysfs.join("devices/system/cpu").join(file)
    }

    /// Reads all variable properties.
    ///
    /// # Errors
    /// [`SystemError::Read`] and [`SystemError::Content`].
    pub fn facts(&self) -> Result<Facts, SystemError> {
        let memory = parsed(&self.procfs.join("meminfo"), parse_meminfo)?;
        let uptime_s = parsed(&self.procfs.join("uptime"), parse_uptime)?;
        let [online, present, possible] = self.cpus()?;
        Ok(Facts {
            online,
            present,
            possible,
            memory,
            uptime_s,
        })
    }

    /// Reads the CPU sets `online`, `present`, `possible`.
    ///
    /// # Errors
    /// [`SystemError::Read`] and [`SystemError::Content`].
    pub fn cpus(&self) -> Result<[CpuSet; 3], SystemError> {
        let set = |file| parsed(&self.cpu(file), |text| text.parse().ok());
        Ok([set("online")?, set("present")?, set("possible")?])
    }

    /// Reads the constant properties.
    ///
    /// # Errors
    /// [`SystemError::Read`].
    pub fn identity(&self) -> Result<Identity, SystemError> {
        let text = |file: &str| read(&self.procfs.join(file)).map(|text| text.trim().to_owned());
        Ok(Identity {
            boot_id: text("sys/kernel/random/boot_id")?,
            kernel: text("sys/kernel/osrelease")?,
        })
    }

    /// The kernel's command line; empty if it cannot be read.
    #[must_use]
    pub fn cmdline(&self) -> String {
        fs::read_to_string(self.procfs.join("cmdline")).unwrap_or_default()
    }

    /// Executes a plan in order; the first error ends it. Blocks: a CPU takes a tenth of a second.
    ///
    /// # Errors
    /// [`SystemError::Switch`], and [`SystemError::OutOfCpus`] after every possible switch.
    pub fn carry_out(&self, plan: &Plan) -> Result<(), SystemError> {
        for Switch { cpu, on } in &plan.switches {
            let path = self.cpu(&format!("cpu{cpu}/online"));
            let value = if *on { "1" } else { "0" };
            fs::write(&path, value).map_err(|source| SystemError::Switch {
                path,
                value,
                source,
            })?;
        }
        match plan.missing {
            0 => Ok(()),
            missing => Err(SystemError::OutOfCpus { missing }),
        }
    }
}

fn read(path: &Path) -> Result<String, SystemError> {
    fs::read_to_string(path).map_err(|source| SystemError::Read {
        path: path.to_owned(),
        source,
    })
}

fn parsed<T>(path: &Path, parse: impl Fn(&str) -> Option<T>) -> Result<T, SystemError> {
    let text = read(path)?;
    parse(&text).ok_or_else(|| SystemError::Content {
        path: path.to_owned(),
        content: text.chars().take(80).collect(),
    })
}
