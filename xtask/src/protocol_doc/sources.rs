//! The modules of crate `protocol` in which a link's types are.

use anyhow::{Context as _, Result, bail};

use super::source::{Module, Type};
use crate::shell;

/// The modules that a link's types may be in.
pub(super) struct Sources(pub(super) Vec<Module>);

impl Sources {
    pub(super) fn read(modules: &[&str]) -> Result<Self> {
        let read = |name: &&str| {
            let path = shell::root().join(format!("protocol/src/{name}.rs"));
            let text = std::fs::read_to_string(&path)?;
            Module::read(&text).with_context(|| path.display().to_string())
        };
        Ok(Self(modules.iter().map(read).collect::<Result<_>>()?))
    }

    pub(super) fn find(&self, name: &str) -> Result<&Type> {
        if let Some(why) = self.0.iter().find_map(|module| module.unread.get(name)) {
            bail!("type {name}: {why}");
        }
        let mut types = self.0.iter().flat_map(|module| &module.types);
        let found = types.find(|of_type| of_type.name == name);
        found.with_context(|| format!("no module of the link has a type {name}"))
    }
}
