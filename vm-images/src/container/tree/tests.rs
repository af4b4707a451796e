use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn header(path: &str, kind: Kind, link: &str) -> Header {
    Header {
        path: path.to_owned(),
        kind,
        mode: 0o644,
        uid: 1,
        gid: 2,
        bytes: 3,
        link: link.to_owned(),
    }
}

/// Builds a tree of layers of (path, kind, link).
fn tree(layers: &[&[(&str, Kind, &str)]]) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    for (number, layer) in layers.iter().enumerate() {
        if number > 0 {
            tree.next_layer();
        }
        for (path, kind, link) in *layer {
            tree.take(&header(path, *kind, link))?;
        }
    }
    Ok(tree)
}

fn paths(tree: &Tree) -> Vec<&str> {
    tree.iter()
        .map(|(path, ..)| path)
        .filter(|path| !path.is_empty())
        .collect()
}

use Kind::{Directory as D, Fifo, File as F, HardLink as H, Symlink as S};

/// Requirement: N46
#[test]
fn a_layer_adds_replaces_and_takes_away() {
    let all = tree(&[
        &[
            ("etc", D, ""),
            ("etc/a", F, ""),
            ("etc/b", F, ""),
            ("opt/x/y", F, ""),
            ("opt/z", F, ""),
        ],
        &[
            ("./etc/.wh.a", F, ""),
            ("etc/c", F, ""),
            ("opt", D, ""),
            ("opt/.wh..wh..opq", F, ""),
            ("opt/new", F, ""),
        ],
    ])
    .unwrap();
    assert_eq!(paths(&all), ["etc", "etc/b", "etc/c", "opt", "opt/new"]);
    assert_eq!(all.bytes(), 9);
}

/// Requirement: N46
#[test]
fn a_whiteout_leaves_what_its_own_layer_brings() {
    for second in [
        [("d/.wh.f", F, ""), ("d/f", F, "")],
        [("d/f", F, ""), ("d/.wh.f", F, "")],
    ] {
        let all = tree(&[&[("d/f", F, ""), ("d/g", F, "")], &second]).unwrap();
        let Body::File { layer, .. } = all.get("d/f").unwrap().body else {
            panic!()
        };
        assert_eq!((layer, paths(&all).len()), (1, 3));
    }
    // A directory and its opaque whiteout in one layer, in either order.
    for second in [
        [(".wh.d", F, ""), ("d/new", F, "")],
        [("d/new", F, ""), (".wh.d", F, "")],
    ] {
        let all = tree(&[&[("d/old", F, "")], &second]).unwrap();
        assert_eq!(paths(&all), ["d", "d/new"]);
    }
}

/// Requirement: N46
#[test]
fn paths_go_through_links_and_stay_inside() {
    let all = tree(&[
        &[
            ("usr/lib", D, ""),
            ("lib", S, "usr/lib"),
            ("up", S, "../../.."),
            ("abs", S, "/usr"),
        ],
        &[
            ("lib/x", F, ""),
            ("up/y", F, ""),
            ("abs/z", F, ""),
            ("up/up/abs/w", F, ""),
        ],
    ])
    .unwrap();
    for path in ["usr/lib/x", "y", "usr/z", "usr/w"] {
        assert!(all.get(path).is_some(), "{path}: {:?}", paths(&all));
    }
    assert!(matches!(all.get("lib").unwrap().body, Body::Symlink(_)));
    // A new entry replaces a link of the same name.
    let all = tree(&[
        &[("a", S, "b"), ("b/c", F, "")],
        &[("a", D, ""), ("a/d", F, "")],
    ])
    .unwrap();
    assert_eq!(paths(&all), ["a", "a/d", "b", "b/c"]);
}

/// Requirement: N46
#[test]
fn hard_links_share_what_they_link() {
    let all = tree(&[
        &[("a", F, ""), ("d/b", H, "a"), ("c", H, "/d/b")],
        &[("a", F, "")],
    ])
    .unwrap();
    let number = |wanted: &str| all.iter().find(|(path, ..)| *path == wanted).unwrap().1;
    assert_eq!(number("d/b"), number("c"));
    assert_ne!(number("a"), number("c"), "a new file has replaced it");
    assert_eq!(all.bytes(), 6, "a linked file counts once");
    for (path, target) in [("b", "gone"), ("b", "d"), ("b", "")] {
        let error = tree(&[&[("d", D, ""), (path, H, target)]]).unwrap_err();
        assert!(
            matches!(error, TreeError::HardLink { .. } | TreeError::Path(_)),
            "{target}: {error}"
        );
    }
}

/// Requirement: N46
#[test]
fn paths_that_lead_out_or_nowhere_are_refused_by_name() {
    for (layer, wanted) in [
        (("../etc/passwd", F, ""), "\"../etc/passwd\" leads out"),
        (("a/../../b", F, ""), "leads out"),
        (("", F, ""), "leads out"),
        (("a\0b", F, ""), "leads out"),
        (("x", S, ""), "points to nothing"),
        ((".", F, ""), "the root"),
    ] {
        let error = tree(&[&[layer]]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{layer:?}: {error}");
    }
    let long = "x".repeat(256);
    assert!(tree(&[&[(&long, F, "")]]).is_err());
    let deep = "dir/".repeat(1100);
    assert!(tree(&[&[(&deep, D, "")]]).is_err());
    assert!(matches!(
        tree(&[&[("a", F, ""), ("a/b", F, "")]]),
        Err(TreeError::NoDirectory(_))
    ));
    let circle = tree(&[&[("a", S, "b"), ("b", S, "a"), ("a/c", F, "")]]).unwrap_err();
    assert!(matches!(circle, TreeError::Circle(_)), "{circle}");
    // Device nodes are skipped.
    let all = tree(&[&[("dev/null", Kind::Device, ""), ("p", Fifo, "")]]).unwrap();
    assert_eq!(paths(&all), ["dev", "p"]);
}

/// Reference model for layers of files and whiteouts: the layer whose file is visible at a path.
fn seen(layers: &[BTreeMap<String, bool>], path: &str) -> Option<usize> {
    let mut above: Vec<&str> = path.match_indices('/').map(|(at, _)| &path[..at]).collect();
    above.push(path);
    for (number, layer) in layers.iter().enumerate().rev() {
        if layer.get(path) == Some(&true) {
            return Some(number);
        }
        if above.iter().any(|path| layer.get(*path) == Some(&false)) {
            return None;
        }
    }
    None
}

proptest! {
    /// Requirement: N46
    #[test]
    fn tree_is_valid_for_any_layers(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        super::super::fuzz::container_layers(&data);
    }

    /// Requirement: N46
    #[test]
    fn files_and_whiteouts_are_seen_as_from_above(
        layers in proptest::collection::vec(
            proptest::collection::btree_map("[ab]/[cd]/[ef]", any::<bool>(), 0..5), 1..5),
        hidden in proptest::collection::vec((0usize..5, "[ab](/[cd])?"), 0..4),
    ) {
        let mut layers = layers;
        for (number, path) in hidden {
            if let Some(layer) = layers.get_mut(number) {
                layer.insert(path, false);
            }
        }
        let mut tree = Tree::default();
        for (number, layer) in layers.iter().enumerate() {
            if number > 0 {
                tree.next_layer();
            }
            for (path, is_there) in layer {
                let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
                let name = if *is_there { path.clone() } else { format!("{above}/.wh.{name}") };
                tree.take(&header(&name, F, "")).unwrap();
            }
        }
        for path in ["a/c/e", "a/c/f", "a/d/e", "a/d/f", "b/c/e", "b/c/f", "b/d/e", "b/d/f"] {
            let found = tree.get(path).map(|node| match node.body {
                Body::File { layer, .. } => layer,
                _ => usize::MAX,
            });
            prop_assert_eq!(found, seen(&layers, path), "{} of {:?}", path, layers);
        }
    }
}
