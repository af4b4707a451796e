//! Conditions that this machine must meet before a build begins.

use crate::error::BuildError;
use crate::requirements::host_requirements;
use crate::sandbox::sandbox_refused;

/// Checks the processor, the user, the tools and the sandbox, in this order.
///
/// # Errors
/// The first condition that does not hold, with its fix.
pub(crate) fn preconditions() -> Result<(), BuildError> {
    let architecture = std::env::consts::ARCH;
    if architecture != "x86_64" {
        return Err(BuildError::Architecture {
            found: architecture.to_owned(),
        });
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(BuildError::NotRoot);
    }
    if let Some(missing) = host_requirements()
        .into_iter()
        .find(|requirement| !requirement.present)
    {
        return Err(BuildError::MissingTool {
            tool: missing.name.to_owned(),
            why: missing.why.to_owned(),
            package: missing.package.to_owned(),
        });
    }
    sandbox_refused().map_or(Ok(()), |why| Err(BuildError::Unconfined { why }))
}
