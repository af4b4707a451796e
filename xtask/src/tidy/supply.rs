//! What may be built in, by deny.toml: licences, sources and crates.

use anyhow::{Context as _, Result};
use serde::Deserialize;
use test_records::{Missing, Skip};

use crate::crates::{Crates, Locked, Package, locked};
use crate::shell;

/// The part of deny.toml that is read here.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    /// Crates that may use it all the same.
    #[serde(default)]
    wrappers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// The check that is not made here: its database is a repository, which this does not download.
pub(crate) fn left_out() -> Skip {
    Skip {
        missing: Missing::Advisories,
        test: "advisories".to_owned(),
        reason: "run `cargo deny check advisories` with a network".to_owned(),
    }
}

/// What breaks the rules.
pub(super) fn findings() -> Result<Vec<String>> {
    let text = std::fs::read_to_string(shell::root().join("deny.toml"))?;
    let rules: Rules = toml::from_str(&text).context("deny.toml is not understood")?;
    let crates = Crates::read()?;
    let licenses = crates.all().into_iter().filter_map(|it| rules.license(it));
    shell::say(&left_out().to_string());
    let lock = locked()?;
    let sources = lock.iter().filter_map(|it| rules.source(it));
    let bans = lock.iter().filter_map(|it| rules.ban(it));
    let users = lock.iter().filter_map(|it| rules.user(it));
    Ok(licenses.chain(sources).chain(bans).chain(users).collect())
}

impl Rules {
    fn license(&self, package: &Package) -> Option<String> {
        let expression = package.license.as_deref().unwrap_or_default();
        if is_allowed(expression, &self.licenses.allow) {
            return None;
        }
        Some(format!(
            "deny.toml: {} {} has licence {expression:?}, which [licenses] does not allow: use another crate",
            package.name, package.version
        ))
    }

    fn source(&self, package: &Locked) -> Option<String> {
        let source = package.source.as_deref()?;
        let registry = source.strip_prefix("registry+").unwrap_or_default();
        let is_known = self.sources.allow_registry.iter().any(|it| it == registry);
        if is_known && package.checksum.is_some() {
            return None;
        }
        Some(format!(
            "deny.toml: {} {} comes from {source}, which [sources] does not allow, or has no checksum: take it from crates.io",
            package.name, package.version
        ))
    }

    fn ban(&self, package: &Locked) -> Option<String> {
        let banned = self.bans.deny.iter();
        let mut banned = banned.filter(|ban| ban.wrappers.is_empty() && ban.name == package.name);
        banned.next().map(|_| {
            format!(
                "deny.toml: {} {} is banned by [bans]: turn off the feature that needs it (`cargo tree -i {}`)",
                package.name, package.version, package.name
            )
        })
    }

    /// A crate that uses one which [bans] keeps for others.
    fn user(&self, package: &Locked) -> Option<String> {
        let is_used = |ban: &&Ban| {
            let mut names = package
                .dependencies
                .iter()
                .filter_map(|it| it.split(' ').next());
            names.any(|name| name == ban.name)
        };
        let kept = self.bans.deny.iter().filter(|ban| !ban.wrappers.is_empty());
        let mut kept = kept.filter(|ban| !ban.wrappers.contains(&package.name));
        kept.find(is_used).map(|ban| {
            format!(
                "deny.toml: {} {} uses {}, which [bans] keeps for {}: use ring",
                package.name,
                package.version,
                ban.name,
                ban.wrappers.join(", ")
            )
        })
    }
}

/// Whether an SPDX expression can be met with the licences that are allowed. `/` is the old form of
/// `OR`; `AND` binds stronger. An expression that is none is not met.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest, allowed).unwrap_or(false) && rest.is_empty()
}

fn any(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = all(rest, allowed)?;
    while let [first, more @ ..] = *rest
        && *first == "OR"
    {
        *rest = more;
        met |= all(rest, allowed)?;
    }
    Some(met)
}

fn all(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    let mut met = one(rest, allowed)?;
    while let [first, more @ ..] = *rest
        && *first == "AND"
    {
        *rest = more;
        met &= one(rest, allowed)?;
    }
    Some(met)
}

fn one(rest: &mut &[&str], allowed: &[String]) -> Option<bool> {
    match *rest {
        ["(", more @ ..] => {
            *rest = more;
            let met = any(rest, allowed)?;
            *rest = rest.strip_prefix(&[")"])?;
            Some(met)
        }
        [license, "WITH", exception, more @ ..] => {
            *rest = more;
            Some(allowed.contains(&format!("{license} WITH {exception}")))
        }
        [license, more @ ..] => {
            *rest = more;
            Some(allowed.iter().any(|it| it == license))
        }
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_allowed_by_their_expression() {
        let allowed = [
            "MIT",
            "Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
            "Zlib",
        ]
        .map(str::to_owned);
        for (expression, is_met) in [
            ("MIT", true),
            ("MIT/GPL-3.0", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(GPL-3.0 OR MIT) AND Zlib", true),
            ("MIT OR GPL-3.0 AND GPL-2.0", true),
            ("GPL-3.0 WITH Classpath-exception-2.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("", false),
            ("(MIT", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), is_met, "{expression}");
        }
    }

    /// A crate with another licence, from another place, without a checksum or of a banned name is
    /// a finding that names it.
    #[test]
    fn crates_that_break_a_rule_are_named() {
        let rules: Rules = toml::from_str(
            "licenses.allow = ['MIT']\nbans.deny = [{ crate = 'openssl' }, { crate = 'aws', wrappers = ['tuf'] }]\nsources.allow-registry = ['https://a']",
        )
        .expect("rules");
        let package = |license: Option<&str>| {
            let text =
                serde_json::json!({"name": "x", "version": "1.0.0", "id": "x", "license": license});
            serde_json::from_value::<Package>(text).expect("a package")
        };
        assert_eq!(rules.license(&package(Some("MIT"))), None);
        for license in [Some("AGPL-3.0"), None] {
            let finding = rules.license(&package(license)).expect("a finding");
            assert!(finding.contains("x 1.0.0"), "{finding}");
        }
        let locked = |name: &str, source: &str, checksum: Option<&str>| Locked {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            source: Some(source.to_owned()),
            checksum: checksum.map(str::to_owned),
            dependencies: vec!["aws 1.0.0".to_owned()],
        };
        assert_eq!(
            rules.source(&locked("x", "registry+https://a", Some("0"))),
            None
        );
        for (source, checksum) in [
            ("registry+https://b", Some("0")),
            ("git+https://a", None),
            ("registry+https://a", None),
        ] {
            assert!(
                rules.source(&locked("x", source, checksum)).is_some(),
                "{source}"
            );
        }
        assert!(rules.ban(&locked("openssl", "", None)).is_some());
        assert_eq!(rules.ban(&locked("rustls", "", None)), None);
        assert_eq!(rules.ban(&locked("aws", "", None)), None);
        assert_eq!(rules.user(&locked("tuf", "", None)), None);
        let user = rules.user(&locked("agent", "", None)).expect("a finding");
        assert!(user.contains("agent 1.0.0 uses aws"), "{user}");
    }

    #[test]
    fn crates_of_the_project_follow_the_rules() {
        assert_eq!(findings().expect("read"), Vec::<String>::new());
    }
}
