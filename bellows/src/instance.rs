//! One running Bellows: the lock on its state directory, and the loopback block it was given at its
//! first start.
//!
//! ```text
//! state directory ── lock ──────── at most one `bellows up`
//!                 └─ instance.json {"format":1,"block":7,"node":"host"}
//!                                   └─ 127.7.0.1:6443 API, 127.7.0.2:10299 permits, 127.7.0.3 agent, 127.7.1.1… VMs
//! ```
//! The block is kept for ever, because guests that outlive us listen in it.

pub(crate) mod lock;
pub(crate) mod sockets;
pub(crate) mod users;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::fail::{Fail, Outcome};
use crate::places::StateDir;

/// Name of the scheduler on this machine. The agent sizes only VMs that name it.
pub(crate) const SCHEDULER_NAME: &str = "autoscale-scheduler";
/// Version of the format of `instance.json`.
const FORMAT: u32 = 1;
/// Values of N for the block 127.N.0.0/16. Programs use 127.0, Debian names hosts in 127.1, and
/// 127.255 holds the broadcast address.
pub(crate) const BLOCKS: std::ops::RangeInclusive<u8> = 2..=250;
/// Port of the embedded API server.
pub(crate) const API_PORT: u16 = 6443;

/// Settings that are chosen at the first start and never change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    format: u32,
    /// N of 127.N.0.0/16.
    block: u8,
    /// Name of the Node object.
    node: String,
}

impl Instance {
    /// Reads the instance of a state directory. `None` if it was never started.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or has an unknown format.
    pub(crate) fn load(state: &StateDir) -> Outcome<Option<Self>> {
        let path = state.instance();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Fail::missing(format!("{}: {error}", path.display()))),
        };
        parse(&text).map(Some).map_err(|why| {
            Fail::usage(format!("{}: {why}", path.display()))
                .rule(
                    "the file is written at the first `bellows up` and names the addresses in use",
                )
                .fix("restore it; or, if no guest of it runs any more, remove the state directory")
        })
    }

    /// Reads the instance, or creates one and writes it before it is used.
    ///
    /// # Errors
    ///
    /// If the given block or node differs from the stored one, no block is free, or the file cannot
    /// be written.
    pub(crate) fn load_or_create(
        state: &StateDir,
        block: Option<u8>,
        node: Option<&str>,
    ) -> Outcome<Self> {
        if let Some(kept) = Self::load(state)? {
            kept.check_unchanged(block, node)?;
            return Ok(kept);
        }
        let block = match block {
            Some(block) => block,
            None => {
                let mut taken = sockets::blocks_in_use();
                taken.extend(users::blocks_of_others(state));
                choose_block(seed_of(state.path()), &taken)?
            }
        };
        let node = match node {
            Some(node) => node.to_owned(),
            None => host_name()?,
        };
        let instance = Self {
            format: FORMAT,
            block,
            node,
        };
        write_durably(&state.instance(), &instance)?;
        Ok(instance)
    }

    fn check_unchanged(&self, block: Option<u8>, node: Option<&str>) -> Outcome {
        let differs = |name: &str, kept: &str, given: &str| {
            Fail::usage(format!(
                "{name} {given} differs from {kept}, which this state directory has"
            ))
            .rule("addresses and node name are chosen once: guests and objects refer to them")
            .fix(format!("leave {name} out, or use another --state-dir"))
        };
        if let Some(given) = block.filter(|given| *given != self.block) {
            return Err(differs(
                "--block",
                &self.block.to_string(),
                &given.to_string(),
            ));
        }
        if let Some(given) = node.filter(|given| *given != self.node) {
            return Err(differs("--node-name", &self.node, given));
        }
        Ok(())
    }

    /// N of 127.N.0.0/16.
    pub(crate) fn block(&self) -> u8 {
        self.block
    }

    /// Name of the Node object.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    pub(crate) fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.block, 0, last)
    }

    /// Address of the API server.
    pub(crate) fn api(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.address(1)), API_PORT)
    }

    /// Address of the permit server.
    pub(crate) fn permits(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.address(2)), protocol::permit::PORT)
    }

    /// Address of the agent's servers. Each has its own port.
    pub(crate) fn agent(&self) -> Ipv4Addr {
        self.address(3)
    }
}

fn parse(text: &str) -> Result<Instance, String> {
    let instance: Instance = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if instance.format != FORMAT {
        return Err(format!("format {} is not {FORMAT}", instance.format));
    }
    if !BLOCKS.contains(&instance.block) {
        return Err(format!("block {} is not in 2..=250", instance.block));
    }
    Ok(instance)
}

/// The first block that is not taken. The search starts at a block that depends on the state
/// directory, so that two directories seldom collide.
fn choose_block(seed: u64, taken: &[u8]) -> Outcome<u8> {
    let count = u64::from(BLOCKS.end() - BLOCKS.start()) + 1;
    let offset = usize::try_from(seed % count).unwrap_or(0);
    BLOCKS
        .cycle_from(offset)
        .find(|block| !taken.contains(block))
        .ok_or_else(|| {
            Fail::try_again("no loopback block 127.N.0.0/16 is free for N in 2..=250")
                .rule("each instance owns a block, so that every VM has an address of its own")
                .fix("end other instances: bellows down --stop-vms")
        })
}

/// Iterates over a range of blocks once, starting at an offset.
trait CycleFrom {
    fn cycle_from(self, offset: usize) -> impl Iterator<Item = u8>;
}

impl CycleFrom for std::ops::RangeInclusive<u8> {
    fn cycle_from(self, offset: usize) -> impl Iterator<Item = u8> {
        self.clone().skip(offset).chain(self.take(offset))
    }
}

fn seed_of(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

/// The host's name as a Kubernetes name: lower-case letters, digits, `-` and `.`.
pub(crate) fn host_name() -> Outcome<String> {
    let raw = nix::unistd::gethostname()
        .map_err(|error| Fail::missing(format!("the host has no name: {error}")))?;
    let name = kubernetes_name(&raw.to_string_lossy());
    if name.is_empty() {
        return Err(
            Fail::missing(format!("host name {raw:?} has no usable characters"))
                .fix("name the node: --node-name NAME"),
        );
    }
    Ok(name)
}

fn kubernetes_name(text: &str) -> String {
    let name: String = text
        .to_ascii_lowercase()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        })
        .take(63)
        .collect();
    name.trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

fn write_durably(path: &Path, instance: &Instance) -> Outcome {
    let text = serde_json::to_vec_pretty(instance).map_err(std::io::Error::from);
    let written = text.and_then(|text| daemon_kit::durable::replace(path, &text));
    written.map_err(|error| {
        Fail::missing(format!("{} cannot be written: {error}", path.display()))
            .fix("make room or mend the rights of the state directory")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, StateDir) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(dir.path())).unwrap();
        (dir, state)
    }

    #[test]
    fn the_block_chosen_first_is_kept() {
        let (_dir, state) = state();
        assert_eq!(Instance::load(&state).unwrap(), None);
        let first = Instance::load_or_create(&state, None, Some("node-a")).unwrap();
        assert!(BLOCKS.contains(&first.block()));
        assert_eq!(Instance::load_or_create(&state, None, None).unwrap(), first);
        assert_eq!(
            Instance::load_or_create(&state, Some(first.block()), None).unwrap(),
            first
        );
        assert_eq!(
            first.api().to_string(),
            format!("127.{}.0.1:6443", first.block())
        );
        assert_eq!(
            first.permits().to_string(),
            format!("127.{}.0.2:10299", first.block())
        );
    }

    #[test]
    fn another_block_or_name_later_is_refused_with_both_values() {
        let (_dir, state) = state();
        Instance::load_or_create(&state, Some(9), Some("node-a")).unwrap();
        let fail = Instance::load_or_create(&state, Some(8), None).unwrap_err();
        assert!(
            fail.what().contains("--block 8") && fail.what().contains('9'),
            "{fail}"
        );
        let fail = Instance::load_or_create(&state, None, Some("node-b")).unwrap_err();
        assert!(
            fail.what().contains("node-b") && fail.what().contains("node-a"),
            "{fail}"
        );
        assert_eq!(fail.exit() as u8, 64);
    }

    #[test]
    fn a_damaged_instance_file_is_an_error_and_is_left_alone() {
        let (_dir, state) = state();
        for text in [
            "",
            "{",
            r#"{"format":2,"block":7,"node":"a"}"#,
            r#"{"format":1,"block":0,"node":"a"}"#,
        ] {
            std::fs::write(state.instance(), text).unwrap();
            let fail = Instance::load_or_create(&state, None, None).unwrap_err();
            assert_eq!(fail.exit() as u8, 64, "{text}");
            assert_eq!(std::fs::read_to_string(state.instance()).unwrap(), text);
        }
    }

    #[test]
    fn blocks_in_use_are_passed_over() {
        let all: Vec<u8> = BLOCKS.collect();
        assert_eq!(choose_block(0, &[]).unwrap(), 2);
        assert_eq!(choose_block(0, &[2, 3]).unwrap(), 4);
        assert_eq!(choose_block(248, &[250]).unwrap(), 2);
        assert_eq!(choose_block(7, &all[..248]).unwrap(), 250);
        assert_eq!(choose_block(7, &all).unwrap_err().exit() as u8, 75);
    }

    #[test]
    fn host_names_become_kubernetes_names() {
        assert_eq!(kubernetes_name("My_Host.local"), "my-host.local");
        assert_eq!(kubernetes_name("--x--"), "x");
        assert_eq!(kubernetes_name("___"), "");
    }
}
