//! Finds the Debian mirror in this machine's apt configuration. No artefact names it.

use std::fs;
use std::path::Path;

use crate::error::BuildError;

/// Base addresses of archives. Deliberately not `Debug`, `Display` or `Serialize`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Mirrors {
    /// Base address of the archive.
    pub(crate) main: String,
    /// Base address of the security archive, if the machine uses one.
    pub(crate) security: Option<String>,
}

/// The relevant part of one line of apt's source lists.
struct Source {
    uri: String,
    suite: String,
}

/// The host's apt configuration directory.
const APT_DIRECTORY: &str = "/etc/apt";

/// The given mirror, else the one of the machine's apt configuration.
pub(crate) fn find(given: Option<&str>) -> Result<Mirrors, BuildError> {
    let dir = Path::new(APT_DIRECTORY);
    let sources = read_sources(dir);
    let security = sources
        .iter()
        .find(|s| s.suite.contains("-security"))
        .map(|s| s.uri.clone());
    let main = match given {
        Some(uri) => Some(uri.to_owned()),
        None => sources
            .into_iter()
            .find(|s| is_debian_release(&s.suite))
            .map(|s| s.uri),
    };
    let main = main.ok_or_else(|| BuildError::NoMirror {
        looked_in: dir.to_owned(),
    })?;
    Ok(Mirrors { main, security })
}

/// Code name of the host's Debian release. `None` on another system.
pub(crate) fn host_suite() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    text.lines()
        .find_map(|l| l.strip_prefix("VERSION_CODENAME="))
        .map(|v| v.trim_matches('"').into())
}

/// Third-party archives use other words, such as `nodistro` and `cloud-sdk-...`.
fn is_debian_release(suite: &str) -> bool {
    const NAMES: [&str; 8] = [
        "bullseye",
        "bookworm",
        "trixie",
        "forky",
        "sid",
        "stable",
        "oldstable",
        "testing",
    ];
    NAMES.contains(&suite)
}

fn read_sources(dir: &Path) -> Vec<Source> {
    let mut files = vec![dir.join("sources.list")];
    if let Ok(entries) = fs::read_dir(dir.join("sources.list.d")) {
        files.extend(entries.filter_map(|e| e.ok().map(|e| e.path())));
    }
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        match file.extension().and_then(|e| e.to_str()) {
            Some("list") => found.extend(parse_list(&text)),
            Some("sources") => found.extend(parse_stanzas(&text)),
            _ => {}
        }
    }
    for source in &mut found {
        source.uri = resolve_mirror_file(&source.uri);
    }
    found
}

/// One-line style: `deb [options] URI SUITE COMPONENT...`.
fn parse_list(text: &str) -> Vec<Source> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else {
            continue;
        };
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, after)| after),
            None => rest,
        };
        let mut words = rest.split_whitespace();
        if let (Some(uri), Some(suite)) = (words.next(), words.next())
            && words.any(|component| component == "main")
        {
            found.push(Source {
                uri: uri.to_owned(),
                suite: suite.to_owned(),
            });
        }
    }
    found
}

/// Paragraph style (`*.sources`).
fn parse_stanzas(text: &str) -> Vec<Source> {
    let mut found = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.trim()
                    .eq_ignore_ascii_case(name)
                    .then(|| value.trim().to_owned())
            })
        };
        let words = |name: &str| -> Vec<String> {
            field(name)
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        };
        let disabled = field("Enabled").is_some_and(|v| v.eq_ignore_ascii_case("no"));
        if disabled || !words("Types").contains(&"deb".to_owned()) {
            continue;
        }
        if !words("Components").contains(&"main".to_owned()) {
            continue;
        }
        if let Some(uri) = words("URIs").first() {
            let source = |suite: String| Source {
                uri: uri.clone(),
                suite,
            };
            found.extend(words("Suites").into_iter().map(source));
        }
    }
    found
}

/// Cloud images write `mirror+file:/path`: the first line of that file is the mirror.
fn resolve_mirror_file(uri: &str) -> String {
    let Some(path) = uri.strip_prefix("mirror+file:") else {
        return uri.to_owned();
    };
    let path = Path::new("/").join(path.trim_start_matches('/'));
    let text = fs::read_to_string(path).unwrap_or_default();
    let first = text
        .lines()
        .map(str::trim)
        .find(|l| !l.is_empty() && !l.starts_with('#'));
    let first = first.and_then(|l| l.split_whitespace().next());
    first.map_or_else(|| uri.to_owned(), str::to_owned)
}

/// Replaces the host in every address of a text.
pub(crate) fn without_hosts(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        out.push_str(&rest[..at + 3]);
        rest = &rest[at + 3..];
        let end = rest
            .find(|c: char| c == '/' || c.is_whitespace())
            .unwrap_or(rest.len());
        out.push_str("MIRROR");
        rest = &rest[end..];
    }
    out.push_str(rest);
    // apt also names the bare host: "Could not resolve 'host'", "connect to host:80 (1.2.3.4)".
    let mut before = "";
    let mut kept = Vec::new();
    for word in out.split(' ') {
        let named = ["to", "from", "resolve", "resolving", "host"].contains(&before);
        kept.push(if (named && is_host(word)) || is_address(word) {
            "MIRROR"
        } else {
            word
        });
        before = word;
    }
    kept.join(" ")
}

/// Matches `'name.example'` and `name.example:80`, but no plain word.
fn is_host(word: &str) -> bool {
    let inner = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    inner.contains(['.', ':']) && !inner.contains('/')
}

fn is_address(word: &str) -> bool {
    let inner = word.trim_matches(|c: char| !c.is_ascii_digit());
    inner.matches('.').count() == 3 && inner.split('.').all(|part| part.parse::<u8>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(sources: Vec<Source>) -> Vec<(String, String)> {
        sources.into_iter().map(|s| (s.uri, s.suite)).collect()
    }

    fn pair(uri: &str, suite: &str) -> (String, String) {
        (uri.to_owned(), suite.to_owned())
    }

    /// Requirement: N46
    #[test]
    fn reads_one_line_sources() {
        let text = "# deb http://no.example/debian bookworm main\n\
                    deb [arch=amd64 signed-by=/k] http://a.example/debian bookworm main contrib\n\
                    deb-src http://a.example/debian bookworm main\n\
                    deb http://b.example/x bookworm contrib\n";
        assert_eq!(
            pairs(parse_list(text)),
            [pair("http://a.example/debian", "bookworm")]
        );
    }

    /// Requirement: N46
    #[test]
    fn reads_paragraph_sources() {
        let text = "Types: deb\nURIs: http://a.example/debian\nSuites: trixie trixie-updates\n\
                    Components: main\n\nTypes: deb-src\nURIs: http://s.example/\nSuites: trixie\n\
                    Components: main\n\nEnabled: no\nTypes: deb\nURIs: http://off.example/\n\
                    Suites: trixie\nComponents: main\n";
        let expected = [
            pair("http://a.example/debian", "trixie"),
            pair("http://a.example/debian", "trixie-updates"),
        ];
        assert_eq!(pairs(parse_stanzas(text)), expected);
    }

    /// Requirement: N46
    #[test]
    fn third_party_archives_are_no_mirror() {
        assert!(is_debian_release("bookworm") && is_debian_release("stable"));
        for other in [
            "nodistro",
            "cloud-sdk-bookworm",
            "bookworm-security",
            "bookworm-updates",
            "",
        ] {
            assert!(!is_debian_release(other), "{other}");
        }
    }

    /// Requirement: N46
    #[test]
    fn messages_carry_no_mirror_host() {
        let text = "Err:1 http://mirror.example.org/debian bookworm InRelease\n  Could not resolve \
                    'mirror.example.org'\n Could not connect to mirror.example.org:80 (203.0.113.7). - end";
        let clean = without_hosts(text);
        assert!(
            !clean.contains("example") && !clean.contains("203.0"),
            "{clean}"
        );
        assert!(clean.contains("http://MIRROR/debian bookworm"), "{clean}");
        for plain in [
            "E: Unable to locate package x",
            "Failed to fetch it from version 1 to 2.",
        ] {
            assert_eq!(without_hosts(plain), plain);
        }
    }
}
