//! Arguments that several commands share, and the parsers of their values.

use std::path::PathBuf;

use clap::Args;
use protocol::quantity::Quantity;

use crate::plugin;
use crate::terminal::ColourChoice;

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Directory of this instance's state
    /// [default: /var/lib/bellows for root, else ~/.local/state/bellows]
    #[arg(
        long,
        global = true,
        env = "BELLOWS_STATE_DIR",
        value_name = "DIR",
        hide_env = true
    )]
    pub(crate) state_dir: Option<PathBuf>,
    /// Kubeconfig to ask with
    /// [default: the one in the state directory; as kubectl's plugin, kubectl's]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: ColourChoice,
}

/// A namespace, or all of them.
#[derive(Debug, Clone, Args)]
pub(crate) struct NamespaceArgs {
    /// Namespace to look in
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    pub(crate) namespace: String,
    /// Look in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

impl NamespaceArgs {
    /// The namespace to list, `None` for all.
    pub(crate) fn chosen(&self) -> Option<&str> {
        (!self.all_namespaces).then_some(self.namespace.as_str())
    }
}

/// A VM by name, `NAME` or `NAMESPACE/NAME`.
#[derive(Debug, Clone, Args)]
pub(crate) struct VmArgs {
    /// The VM, as NAME or NAMESPACE/NAME
    #[arg(value_name = "VM")]
    vm: String,
    /// Namespace of a VM given by its name alone
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    namespace: String,
}

impl VmArgs {
    /// Namespace and name of the VM.
    pub(crate) fn key(&self) -> (&str, &str) {
        self.vm
            .split_once('/')
            .unwrap_or((&self.namespace, &self.vm))
    }
}

/// A set by name, `NAME` or `NAMESPACE/NAME`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SetArgs {
    /// The set, as NAME or NAMESPACE/NAME
    #[arg(value_name = "SET")]
    set: String,
    /// Namespace of a set given by its name alone
    #[arg(short, long, default_value_t = plugin::namespace(), value_name = "NAMESPACE")]
    namespace: String,
}

impl SetArgs {
    /// Namespace and name of the set.
    pub(crate) fn key(&self) -> (&str, &str) {
        self.set
            .split_once('/')
            .unwrap_or((&self.namespace, &self.set))
    }
}

pub(crate) fn parse_memory(text: &str) -> Result<Quantity, String> {
    let size: Quantity = text
        .parse()
        .map_err(|error: protocol::quantity::QuantityError| error.to_string())?;
    match size.as_u64() {
        Some(bytes) if bytes > 0 => Ok(size),
        _ => Err(format!("{text} is no size above zero, such as 1Gi")),
    }
}
