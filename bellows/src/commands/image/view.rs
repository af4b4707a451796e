//! Images as `bellows image ls` lists them.

use protocol::image::ImageContent;
use serde::Serialize;
use vm_images::Image;

use crate::output::Table;
use crate::view::units::memory;

/// An image as it is listed. An item of `bellows image ls -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ImageView {
    name: String,
    digest: String,
    kind: &'static str,
    version: String,
    suite: String,
    bytes: u64,
    packages: usize,
    reproducible: bool,
    dir: String,
}

pub(super) fn view(image: &Image) -> ImageView {
    let (kind, version) = match &image.manifest.content {
        ImageContent::Guest(guest) => ("guest", format!("Linux {}", guest.kernel_version)),
        ImageContent::Runtime(runtime) => ("runtime", format!("QEMU {}", runtime.qemu_version)),
    };
    let tree = match &image.manifest.content {
        ImageContent::Runtime(runtime) => runtime.root_bytes,
        ImageContent::Guest(_) => 0,
    };
    ImageView {
        name: image.manifest.name.clone(),
        digest: image.digest.to_string(),
        kind,
        version,
        suite: image.manifest.suite.clone(),
        bytes: image
            .manifest
            .files
            .values()
            .map(|file| file.bytes)
            .sum::<u64>()
            + tree,
        packages: image.manifest.packages.len(),
        reproducible: image.manifest.reproducible,
        dir: image.dir.display().to_string(),
    }
}

pub(super) fn table(images: &[ImageView], wide: bool) -> Table {
    let mut header = vec!["NAME", "DIGEST", "KIND", "VERSION", "DEBIAN", "SIZE"];
    if wide {
        header.extend(["PACKAGES", "REPRODUCIBLE", "DIRECTORY"]);
    }
    let mut table = Table::new(&header);
    for image in images {
        let mut row = vec![
            image.name.clone().into(),
            image.digest.chars().take(12).collect::<String>().into(),
            image.kind.into(),
            image.version.clone().into(),
            image.suite.clone().into(),
            memory(image.bytes).into(),
        ];
        if wide {
            row.extend([
                image.packages.to_string().into(),
                if image.reproducible { "yes" } else { "no" }.into(),
                image.dir.clone().into(),
            ]);
        }
        table.row(row);
    }
    table
}
