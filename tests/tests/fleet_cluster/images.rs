//! Images of a part that differ from the installed one.

use anyhow::Result;
use bellows_tests::cluster::pack_changed;
use serde_json::{Value, json};

use super::World;

/// The component in the pods of VMs.
pub(super) const RUNNER: &str = "neonvm-runner";

/// Digests of images that all nodes have.
pub(super) struct Images {
    pub(super) good: String,
    /// Its program prints its version and ends. That of a runner is missing.
    pub(super) bad: String,
}

impl Images {
    pub(super) fn load(world: &World, part: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mark = dir.path().join("mark");
        std::fs::write(&mark, "another image")?;
        let marked = |packed: &mut Value| {
            let file = json!({"file": {"from": mark, "at": "/etc/mark", "mode": 0o644}});
            let layers = packed["layers"].as_array_mut();
            layers
                .into_iter()
                .for_each(|layers| layers.push(json!([file])));
        };
        let ends = |packed: &mut Value| {
            packed["entrypoint"] = json!([format!("/usr/bin/{part}"), "--version"]);
        };
        // The pod of a VM names the program, which is in the last layer.
        let lacks_program = |packed: &mut Value| {
            let layers = packed["layers"].as_array_mut();
            layers.and_then(Vec::pop).map(drop).unwrap_or_default();
        };
        let is_runner = part == RUNNER;
        let broken: &dyn Fn(&mut Value) = if is_runner { &lacks_program } else { &ends };
        let load = |variant: &str, change: &dyn Fn(&mut Value)| {
            let name = format!("{part}-{variant}");
            let (archive, digest) = pack_changed(part, &name, change, dir.path())?;
            let packed = format!("docker.io/bellows/{name}:1");
            let pinned = format!("docker.io/bellows/{part}@{digest}");
            world.cluster.load_as(&archive, &packed, &pinned)?;
            anyhow::Ok(digest)
        };
        Ok(Self {
            good: load("good", &marked)?,
            bad: load("bad", broken)?,
        })
    }
}
