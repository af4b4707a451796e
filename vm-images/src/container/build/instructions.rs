//! Runs the lines of a specification's merge in the tree of the image.

use std::collections::BTreeMap;
use std::os::unix::fs::lchown;

use super::program::env;
use crate::container::config::Process;
use crate::container::context::Root;
use crate::container::merge::{Instruction, What};
use crate::error::{BuildError, IoContext};
use crate::progress::Reporter;
use crate::sandbox::{Identity, Sandbox};

/// User, directory and variables that the lines so far have set.
pub(super) struct Context<'a> {
    root: Root<'a>,
    user: String,
    workdir: String,
    pub(super) env: BTreeMap<String, String>,
}

impl<'a> Context<'a> {
    /// Directory and variables of the image's own program; the user is root.
    pub(super) fn new(root: Root<'a>, process: &Process) -> Self {
        let workdir = process.working_dir.clone().filter(|dir| !dir.is_empty());
        Self {
            root,
            user: "0".to_owned(),
            workdir: workdir.unwrap_or_else(|| "/".to_owned()),
            env: env(process),
        }
    }

    pub(super) fn carry_out(
        &mut self,
        instruction: &Instruction,
        files: &BTreeMap<String, Vec<u8>>,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        match &instruction.what {
            What::User(user) => user.clone_into(&mut self.user),
            What::Workdir(dir) => {
                self.workdir = self.absolute(dir);
                self.root.directory(&self.workdir, 0o755)?;
            }
            What::Env(more) => self.env.extend(more.clone()),
            What::Run(words) => self.run(words, instruction.line, reporter)?,
            What::Copy {
                from,
                to,
                mode,
                owner,
            } => {
                for name in from {
                    self.copy(name, &files[name], to, *mode, owner.as_deref())?;
                }
            }
        }
        Ok(())
    }

    fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", self.workdir.trim_end_matches('/'))
        }
    }

    fn run(
        &self,
        words: &[String],
        line: usize,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), BuildError> {
        let account = self.root.account(&self.user)?;
        self.root.directory(&self.workdir, 0o755)?;
        let identity = Identity {
            uid: account.uid,
            gid: account.gid,
            groups: account.groups,
        };
        let sandbox = Sandbox::open(self.root.0)?;
        let step = format!("RUN in line {line} of the specification's merge");
        let mut tool = sandbox
            .tool(&identity, "/bin/sh", step)?
            // The shell changes the directory, because only the image's user may be able to enter
            // it.
            .args(["-c", "cd \"$0\" && exec \"$@\"", &self.workdir])
            .args(words);
        for (name, value) in &self.env {
            tool = tool.env(name, value);
        }
        tool.env("HOME", &account.home).run(reporter)?;
        sandbox.close()
    }

    fn copy(
        &self,
        name: &str,
        content: &[u8],
        to: &str,
        mode: Option<u32>,
        owner: Option<&str>,
    ) -> Result<(), BuildError> {
        let mut to = self.absolute(to);
        let is_directory = self
            .root
            .place(&format!("{to}/."))
            .is_ok_and(|place| place.is_dir());
        if to.ends_with('/') || is_directory {
            let file = name.rsplit('/').next().unwrap_or(name);
            to = format!("{}/{file}", to.trim_end_matches('/'));
        }
        let path = self.root.put(&to, content, mode.unwrap_or(0o644))?;
        if let Some(owner) = owner {
            let account = self.root.account(owner)?;
            lchown(&path, Some(account.uid), Some(account.gid)).at("change the owner of", &path)?;
        }
        Ok(())
    }
}
