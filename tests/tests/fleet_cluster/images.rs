//! Images of a part that differ from the installed one.

use anyhow::Result;
use bellows_tests::cluster::pack_changed;
use serde_json::{Value, json};

use super::World;

/// Digests of images that all nodes have.
pub(super) struct Images {
    pub(super) good: String,
    /// Its program prints its version and ends.
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
            bad: load("bad", &ends)?,
        })
    }
}
