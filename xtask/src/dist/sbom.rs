//! What a package is made of: a CycloneDX document with each crate that is linked into its program.
//! Source: the CycloneDX 1.5 JSON schema.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::crates::{Crates, Locked, Package, locked};

/// Writes the document of a program of the workspace beside its package; returns its path. The same
/// checkout makes the same document.
pub(super) fn write(program: &str, out: &Path) -> Result<PathBuf> {
    let document = document(program, &Crates::read()?, &locked()?)?;
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let path = out.join(format!("{program}_{}.cdx.json", env!("CARGO_PKG_VERSION")));
    let text = serde_json::to_string_pretty(&document)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn document(program: &str, crates: &Crates, lock: &[Locked]) -> Result<Value> {
    let linked = crates.linked_into(program)?;
    let checksums: BTreeMap<(&str, &str), &str> = lock
        .iter()
        .filter_map(|it| Some(((&*it.name, &*it.version), it.checksum.as_deref()?)))
        .collect();
    let is_root = |package: &Package| package.name == program && package.source.is_none();
    let (mut root, mut components, mut dependencies) = (Value::Null, Vec::new(), Vec::new());
    for (package, needs) in linked {
        let kind = if is_root(package) {
            "application"
        } else {
            "library"
        };
        let mut component = json!({
            "type": kind,
            "bom-ref": reference(package),
            "name": package.name,
            "version": package.version,
            "purl": reference(package),
        });
        if let Some(license) = &package.license {
            // `/` is the old form of `OR`.
            let words: Vec<&str> = license.split('/').map(str::trim).collect();
            component["licenses"] = json!([{"expression": words.join(" OR ")}]);
        }
        if let Some(checksum) = checksums.get(&(&*package.name, &*package.version)) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        let needs: Vec<String> = needs.into_iter().map(reference).collect();
        dependencies.push(json!({"ref": reference(package), "dependsOn": needs}));
        match kind {
            "application" => root = component,
            _ => components.push(component),
        }
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The crate's package URL.
fn reference(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}
