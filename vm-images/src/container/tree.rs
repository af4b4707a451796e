//! The tree of an image with all its layers, computed from their headers before anything is
//! written.
//!
//! A layer adds and replaces paths. A file `.wh.NAME` removes NAME of the layers below, and
//! `.wh..wh..opq` the whole content of its directory. Paths are resolved through symbolic links as
//! the kernel does, with the image as the root. The parent of every path is therefore a directory,
//! and writing the tree below a directory cannot lead out of it.
//!
//! Invariants (`tree_is_valid_for_any_layers`): every parent is a directory; no path
//! has an empty part, `.` or `..`; no whiteout is left; every hard link leads to something that is
//! there.

use std::collections::{BTreeMap, BTreeSet};

use super::tar::{Header, Kind};

/// Prefix of the name of a whiteout.
const WHITEOUT: &str = ".wh.";
/// Name of the whiteout that hides a directory's whole content.
const OPAQUE: &str = ".wh..wh..opq";
/// Most links that are followed for one path, as in the kernel.
const MAX_LINKS: u32 = 40;
/// Longest path and longest link target in bytes.
const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;
/// Most paths in an image.
const MAX_NODES: usize = 2_000_000;

/// Why layers cannot be laid over each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error("the path {0:?} leads out of the image, or is none")]
    Path(String),
    #[error("the link at {0:?} points to nothing, or its target is longer than {MAX_PATH} bytes")]
    Link(String),
    /// Too many links lead to a path. Holds the path.
    #[error("more than {MAX_LINKS} symbolic links lead to {0:?}")]
    Circle(String),
    /// A parent in a path is not a directory. Holds the path.
    #[error("{0:?} lies below something that is no directory")]
    NoDirectory(String),
    /// A hard link names a path that does not exist.
    #[error("the hard link {path:?} is to {target:?}, which is no file of the image")]
    HardLink {
        path: String,
        /// Target of the hard link.
        target: String,
    },
    #[error("the root of the image is replaced by something that is no directory")]
    Root,
    #[error("the image has more than {MAX_NODES} paths")]
    Many,
}

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Directory,
    /// A regular file, and where its content is.
    File {
        /// Index of the layer, from 0 for the lowest.
        layer: usize,
        /// Index of the entry in that layer.
        entry: usize,
        bytes: u64,
    },
    /// A symbolic link with its target.
    Symlink(String),
    Fifo,
}

/// The tree of an image. Paths have no slash at either end. The path of the root is empty.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    paths: BTreeMap<String, usize>,
    nodes: Vec<Node>,
    /// Paths that the current layer has added or passed through.
    fresh: BTreeSet<String>,
    layer: usize,
    entries: usize,
}

impl Default for Tree {
    fn default() -> Self {
        let root = directory();
        Self {
            paths: BTreeMap::from([(String::new(), 0)]),
            nodes: vec![root],
            fresh: BTreeSet::new(),
            layer: 0,
            entries: 0,
        }
    }
}

fn directory() -> Node {
    Node {
        mode: 0o755,
        uid: 0,
        gid: 0,
        body: Body::Directory,
    }
}

impl Tree {
    pub(super) fn next_layer(&mut self) {
        self.layer += 1;
        self.entries = 0;
        self.fresh.clear();
    }

    /// Adds the next entry of the current layer.
    ///
    /// # Errors
    ///
    /// [`TreeError`]. The tree is unusable then.
    pub(super) fn take(&mut self, header: &Header) -> Result<(), TreeError> {
        let entry = self.entries;
        self.entries += 1;
        let parts = parts(&header.path)?;
        let Some((name, above)) = parts.split_last() else {
            return self.take_root(header);
        };
        let parent = self.walk(above, &header.path)?;
        if *name == OPAQUE {
            self.hide(&parent, false);
            return Ok(());
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            // Some builders write private marks that begin with the prefix twice.
            if hidden.is_empty() || hidden == "." || hidden == ".." || hidden.starts_with(WHITEOUT)
            {
                return Ok(());
            }
            self.hide(&join(&parent, hidden), true);
            return Ok(());
        }
        let path = join(&parent, name);
        let node = match header.kind {
            // Device nodes are skipped. The guest creates its own.
            Kind::Device => return Ok(()),
            Kind::HardLink => return self.link(path, &header.link),
            Kind::Directory => Body::Directory,
            Kind::Fifo => Body::Fifo,
            Kind::Symlink => Body::Symlink(target(&path, &header.link)?),
            Kind::File => Body::File {
                layer: self.layer,
                entry,
                bytes: header.bytes,
            },
        };
        self.put(path, with(header, node))
    }

    fn take_root(&mut self, header: &Header) -> Result<(), TreeError> {
        if header.kind != Kind::Directory {
            return Err(TreeError::Root);
        }
        self.nodes[0] = with(header, Body::Directory);
        Ok(())
    }

    /// Resolves a directory through symbolic links and creates missing ones. Returns its resolved
    /// path.
    fn walk(&mut self, parts: &[&str], asked: &str) -> Result<String, TreeError> {
        let mut place = String::new();
        let mut todo: Vec<String> = parts.iter().rev().map(|part| (*part).to_owned()).collect();
        let mut links = 0;
        while let Some(part) = todo.pop() {
            match part.as_str() {
                "" | "." => continue,
                // The parent of the root is the root.
                ".." => {
                    place.truncate(place.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let path = join(&place, &part);
            match self.paths.get(&path).map(|node| &self.nodes[*node].body) {
                Some(Body::Directory) => place = path,
                Some(Body::Symlink(to)) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(TreeError::Circle(cut(asked)));
                    }
                    if to.starts_with('/') {
                        place.clear();
                    }
                    todo.extend(to.split('/').rev().map(str::to_owned));
                }
                Some(_) => return Err(TreeError::NoDirectory(cut(asked))),
                None => {
                    // No path may lie below the name of a whiteout.
                    let is_mark = part.starts_with(WHITEOUT);
                    if is_mark || path.len() > MAX_PATH || part.len() > MAX_NAME {
                        return Err(TreeError::Path(cut(asked)));
                    }
                    self.put(path.clone(), directory())?;
                    place = path;
                }
            }
        }
        Ok(place)
    }

    fn put(&mut self, path: String, node: Node) -> Result<(), TreeError> {
        if path.len() > MAX_PATH {
            return Err(TreeError::Path(cut(&path)));
        }
        let both_directories =
            |old: &Node| old.body == Body::Directory && node.body == Body::Directory;
        self.fresh.insert(path.clone());
        match self.paths.get(&path) {
            Some(old) if both_directories(&self.nodes[*old]) => self.nodes[*old] = node,
            _ => {
                self.remove_below(&path);
                self.nodes.push(node);
                self.paths.insert(path, self.nodes.len() - 1);
            }
        }
        if self.nodes.len() > MAX_NODES {
            return Err(TreeError::Many);
        }
        Ok(())
    }

    fn link(&mut self, path: String, to: &str) -> Result<(), TreeError> {
        let missing = || TreeError::HardLink {
            path: cut(&path),
            target: cut(to),
        };
        let parts = parts(to)?;
        let (name, above) = parts.split_last().ok_or_else(missing)?;
        let target = join(&self.walk(above, to)?, name);
        let node = self.paths.get(&target).copied();
        let is_linkable = |node: &usize| !matches!(self.nodes[*node].body, Body::Directory);
        let node = node.filter(is_linkable).ok_or_else(missing)?;
        if target != path {
            self.remove_below(&path);
            self.paths.insert(path.clone(), node);
        }
        self.fresh.insert(path);
        if self.paths.len() > MAX_NODES {
            return Err(TreeError::Many);
        }
        Ok(())
    }

    /// Removes what lower layers have at a path and below it.
    fn hide(&mut self, path: &str, itself: bool) {
        let lower: Vec<String> = self
            .below(path)
            .filter(|below| !self.is_fresh(below))
            .map(str::to_owned)
            .collect();
        for path in lower {
            self.paths.remove(&path);
        }
        if itself && !path.is_empty() && !self.is_fresh(path) {
            self.paths.remove(path);
        }
    }

    /// Whether the current layer added something at the path or below it.
    fn is_fresh(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        let mut next = self.fresh.range(inside.clone()..);
        self.fresh.contains(path) || next.next().is_some_and(|fresh| fresh.starts_with(&inside))
    }

    fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let inside = if path.is_empty() {
            String::new()
        } else {
            format!("{path}/")
        };
        let paths = self.paths.range(inside.clone()..);
        let paths: Vec<&str> = paths
            .map(|(path, _)| path.as_str())
            .take_while(|path| path.starts_with(&inside))
            .filter(|path| !path.is_empty())
            .collect();
        paths.into_iter()
    }

    fn remove_below(&mut self, path: &str) {
        let all: Vec<String> = self.below(path).map(str::to_owned).collect();
        for path in all {
            self.paths.remove(&path);
            self.fresh.remove(&path);
        }
    }

    /// Every path with its node, parents before children.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, usize, &Node)> {
        let paths = self.paths.iter();
        paths.map(|(path, node)| (path.as_str(), *node, &self.nodes[*node]))
    }

    /// The node at a path. Links are not followed.
    #[must_use]
    pub(super) fn get(&self, path: &str) -> Option<&Node> {
        self.paths.get(path).map(|node| &self.nodes[*node])
    }

    /// Bytes of all files.
    #[must_use]
    pub(super) fn bytes(&self) -> u64 {
        let live: BTreeSet<usize> = self.paths.values().copied().collect();
        let bytes = |node: usize| match self.nodes[node].body {
            Body::File { bytes, .. } => bytes,
            _ => 0,
        };
        live.into_iter().map(bytes).fold(0, u64::saturating_add)
    }
}

fn with(header: &Header, body: Body) -> Node {
    Node {
        mode: header.mode,
        uid: header.uid,
        gid: header.gid,
        body,
    }
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}/{name}")
    }
}

/// Splits a path of an archive. It may begin with `/` or `./` and must not lead upwards.
fn parts(path: &str) -> Result<Vec<&str>, TreeError> {
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    let is_bad = |part: &&str| *part == ".." || part.len() > MAX_NAME;
    if path.is_empty() || path.len() > MAX_PATH || path.contains('\0') || parts.iter().any(is_bad) {
        return Err(TreeError::Path(cut(path)));
    }
    Ok(parts)
}

fn target(path: &str, link: &str) -> Result<String, TreeError> {
    if link.is_empty() || link.len() > MAX_PATH || link.contains('\0') {
        return Err(TreeError::Link(cut(path)));
    }
    Ok(link.to_owned())
}

/// Shortens a path for a message.
fn cut(path: &str) -> String {
    path.chars().take(200).collect()
}

#[cfg(test)]
mod tests;
